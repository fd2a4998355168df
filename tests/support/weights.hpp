#pragma once
/// Random quantised matrices of any format, for tests.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "frugal/quant/codec.hpp"
#include "frugal/quant/formats.hpp"

namespace test {

/// Calls `body(type_tag<F>{})` for every format of the library.
template <class Body>
void for_each_format(Body&& body) {
    [&]<class... F>(frugal::quant::list<F...>) {
        const auto one = [&]<class G>(frugal::type_tag<G> tag) {
            CAPTURE(std::string(G::name));
            body(tag);
        };
        (one(frugal::type_tag<F>{}), ...);
    }(frugal::quant::all{});
}

/// Random blocks of `rows` x `cols` weights with finite scales: encoded normal numbers where there is an encoder, random bits
/// (all codes, any sign) elsewhere.
template <class F>
std::vector<std::byte> random_weights(std::size_t rows, std::size_t cols, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    std::vector<std::byte> out(rows * (cols / F::block_size) * F::block_bytes);
    for (std::size_t at = 0; at < out.size(); at += F::block_bytes) {
        if constexpr (frugal::quant::encodable_format<F>) {
            float values[F::block_size];
            for (float& value : values) value = normal(random);
            F::encode(values, out.data() + at);
        } else {
            do {
                for (std::size_t i = 0; i < F::block_bytes; ++i) out[at + i] = static_cast<std::byte>(random() & 0xFFu);
            } while (!F::finite(out.data() + at));
        }
    }
    return out;
}

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float sigma = 1.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
}

/// For each weight of a row the magnitudes that an integer dot product rounds: |scale * code| + |offset|.
template <class F>
std::vector<double> term_magnitudes(const std::byte* row, std::size_t cols) {
    std::vector<double> out(cols);
    for (std::size_t b = 0; b < cols / F::block_size; ++b) {
        const auto codes = F::unpack(row + b * F::block_bytes);
        for (std::size_t i = 0; i < F::block_size; ++i) {
            double magnitude = std::abs(static_cast<double>(codes.scale) * codes.codes[i]);
            if constexpr (requires { codes.offsets; })
                magnitude += std::abs(static_cast<double>(codes.offset_scale) *
                                      codes.offsets[i / (F::block_size / std::size(codes.offsets))]);
            out[b * F::block_size + i] = magnitude;
        }
    }
    return out;
}

}  // namespace test

#pragma once
/// Small helpers for tests of operators and layers: weights made of floats, seeded numbers, exact comparison.
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "frugal/quant/formats/f32.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

namespace test {

/// f32 weights over `data`, rows of `cols`.
inline frugal::quant::weight_view f32_weights(const std::vector<float>& data, std::size_t cols) {
    return {frugal::quant::f32::type, reinterpret_cast<const std::byte*>(data.data()), data.size() / cols, cols,
            cols * sizeof(float)};
}

/// Weights of a format, encoded from `data`. Owns the bytes.
template <class Format>
struct encoded_weights {
    std::vector<std::byte> bytes;
    frugal::quant::weight_view view;

    encoded_weights(const std::vector<float>& data, std::size_t cols) {
        const std::size_t blocks = data.size() / Format::block_size;
        bytes.resize(blocks * Format::block_bytes);
        for (std::size_t b = 0; b < blocks; ++b)
            Format::encode(data.data() + b * Format::block_size, bytes.data() + b * Format::block_bytes);
        view = {Format::type, bytes.data(), data.size() / cols, cols, cols / Format::block_size * Format::block_bytes};
    }
    encoded_weights(const encoded_weights&) = delete;
    encoded_weights& operator=(const encoded_weights&) = delete;
};

inline frugal::matrix_view<const float> as_rows(const std::vector<float>& data, std::size_t cols) {
    return {data.data(), data.size() / cols, cols};
}
inline frugal::matrix_view<float> as_rows(std::vector<float>& data, std::size_t cols) {
    return {data.data(), data.size() / cols, cols};
}

inline std::vector<float> normal_numbers(std::size_t count, unsigned seed, float scale = 1.0f) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    for (float& value : out) value = scale * normal(generator);
    return out;
}

inline bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace test

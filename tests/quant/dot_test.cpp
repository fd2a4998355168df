// Integer dot products: exact against 64-bit sums, and against the golden products within the error of 8-bit activations.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "golden.hpp"
#include "weights.hpp"

namespace quant = frugal::quant;

namespace {

/// The integers of a block, found without unpack: with its scales set to 1 and 0 a block decodes to small whole numbers.
template <class F>
std::vector<std::int64_t> integers_of(std::vector<std::byte> block, bool offsets) {
    const std::string name(F::name);
    const std::uint16_t one = 0x3C00, zero = 0;
    const bool pair = name == "q4_1" || name == "q5_1" || name == "q4_k" || name == "q5_k";
    if (name == "mxfp4") {
        block[0] = std::byte{128};
    } else {
        std::memcpy(block.data() + (name == "q6_k" ? 208 : 0), offsets ? &zero : &one, 2);
        if (pair) std::memcpy(block.data() + 2, offsets ? &one : &zero, 2);
    }
    std::vector<std::int64_t> out(F::block_size, 0);
    if (offsets && !pair) return out;
    std::vector<float> values(F::block_size);
    F::decode(block.data(), values.data());
    for (std::size_t i = 0; i < F::block_size; ++i) {
        out[i] = static_cast<std::int64_t>(values[i]);
        REQUIRE(static_cast<float>(out[i]) == values[i]);
        if (name == "q4_k" || name == "q5_k") out[i] = offsets ? -out[i] : out[i];  // minima are taken off
    }
    return out;
}

template <class F>
void check_exact(const std::vector<std::byte>& block, const typename F::activation::block& x) {
    std::int64_t products = 0, offsets = 0;
    const auto codes = integers_of<F>(block, false), minima = integers_of<F>(block, true);
    for (std::size_t i = 0; i < F::block_size; ++i) {
        products += codes[i] * x.codes[i];
        offsets += minima[i] * x.codes[i];
    }
    const quant::dot_terms got = F::dot_integers(block.data(), x);
    CHECK(got.products == products);
    CHECK(got.offsets == offsets);
    // The whole: scales rounded once to float, then exact products and one sum in double.
    const auto unpacked = F::unpack(block.data());
    double want = static_cast<double>(unpacked.scale * x.scale) * static_cast<double>(products);
    if constexpr (requires { unpacked.offset_scale; })
        want += static_cast<double>(unpacked.offset_scale * x.scale) * static_cast<double>(offsets);
    CHECK(F::dot(block.data(), x) == want);
    CHECK(unpacked.dot(x) == want);
}

template <class Block>
void set_codes(Block& x, std::size_t size, std::int8_t (*code)(std::size_t)) {
    x.scale = 1.0f;
    for (std::size_t i = 0; i < size; ++i) x.codes[i] = code(i);
    for (std::size_t i = 0; i < size / 16; ++i) {
        int sum = 0;
        for (std::size_t j = 0; j < 16; ++j) sum += x.codes[16 * i + j];
        x.sums[i] = static_cast<std::int16_t>(sum);
    }
}

}  // namespace

TEST_CASE("C42 integer dot products are exact at the extremes of codes and activations") {
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        if constexpr (quant::integer_dot_format<F>) {
            using block_type = typename F::activation::block;
            std::vector<block_type> activations;
            for (auto* code : {+[](std::size_t) { return std::int8_t{127}; }, +[](std::size_t) { return std::int8_t{-127}; },
                               +[](std::size_t i) { return static_cast<std::int8_t>(i % 2 == 0 ? 127 : -127); },
                               +[](std::size_t i) { return static_cast<std::int8_t>(static_cast<int>(i * 37 % 255) - 127); }}) {
                block_type x;
                set_codes(x, F::block_size, code);
                activations.push_back(x);
            }
            // Every byte of the block the same, over all bytes: every nibble pair, group scale and high bit, at both extremes.
            for (unsigned byte = 0; byte < 256; ++byte) {
                std::vector<std::byte> block(F::block_bytes, static_cast<std::byte>(byte));
                if (!F::finite(block.data())) {
                    if (std::string(F::name) == "q6_k") block[209] = std::byte{0x3C};
                    else block[1] = block[3] = std::byte{0x3C};
                    if (!F::finite(block.data())) continue;
                }
                for (const auto& x : activations) check_exact<F>(block, x);
            }
            const auto random = test::random_weights<F>(64, F::block_size, 4);
            const auto values = test::random_floats(64 * F::block_size, 5);
            for (std::size_t b = 0; b < 64; ++b) {
                block_type x;
                F::activation::quantize(values.data() + b * F::block_size, x);
                const auto* at = random.data() + b * F::block_bytes;
                check_exact<F>(std::vector<std::byte>(at, at + F::block_bytes), x);
            }
        }
    });
}

TEST_CASE("C42 the sums that saturate 16 bits: all codes 15, all activations 127") {
    quant::q8_activation<32>::block x;
    set_codes(x, 32, +[](std::size_t) { return std::int8_t{127}; });
    std::vector<std::byte> block(quant::iq4_nl::block_bytes, std::byte{0xFF});
    const std::uint16_t one = 0x3C00;
    std::memcpy(block.data(), &one, 2);
    CHECK(quant::iq4_nl::dot_integers(block.data(), x).products == 459232);
    CHECK(quant::iq4_nl::dot(block.data(), x) == 459232.0);
    quant::q8_activation<256>::block wide;
    set_codes(wide, 256, +[](std::size_t) { return std::int8_t{127}; });
    std::vector<std::byte> super(quant::iq4_xs::block_bytes, std::byte{0xFF});
    std::memcpy(super.data(), &one, 2);
    CHECK(quant::iq4_xs::dot_integers(super.data(), wide).products == 31 * 8 * 459232);
}

TEST_CASE("8-bit activations: codes, sums, error, and blocks that cannot be represented") {
    const auto check = [&]<std::size_t Size>(std::integral_constant<std::size_t, Size>) {
        using activation = quant::q8_activation<Size>;
        typename activation::block x;
        for (const float sigma : {1e-30f, 1e-6f, 1.0f, 1e4f, 1e30f}) {
            const auto values = test::random_floats(Size, 3, sigma);
            activation::quantize(values.data(), x);
            float largest = 0;
            for (const float value : values) largest = std::max(largest, std::abs(value));
            CHECK(x.scale == largest / 127.0f);
            int most = 0;
            for (std::size_t i = 0; i < Size; ++i) {
                most = std::max(most, std::abs(static_cast<int>(x.codes[i])));
                const double off = std::abs(static_cast<double>(x.scale) * x.codes[i] - static_cast<double>(values[i]));
                CHECK(off <= static_cast<double>(x.scale) * (0.5 + 127 * 4 * 0x1p-24));
            }
            CHECK(most == 127);
            for (std::size_t i = 0; i < Size / 16; ++i) {
                int sum = 0;
                for (std::size_t j = 0; j < 16; ++j) sum += x.codes[16 * i + j];
                CHECK(x.sums[i] == sum);
            }
        }
        std::vector<float> values(Size, 0.0f);
        const auto all_zero = [&] {
            bool zero = true;
            for (const std::int8_t code : x.codes) zero = zero && code == 0;
            for (const std::int16_t sum : x.sums) zero = zero && sum == 0;
            return zero;
        };
        for (const float tiny : {0.0f, -0.0f, 1e-45f, -1e-40f, 7e-37f}) {
            values[Size / 2] = tiny;
            activation::quantize(values.data(), x);
            CHECK(x.scale == 0.0f);
            CHECK(all_zero());
        }
        values[Size / 2] = 0x1p-120f;
        activation::quantize(values.data(), x);
        CHECK(x.codes[Size / 2] == 127);
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
            values[0] = 3.0f;
            values[Size - 1] = bad;
            activation::quantize(values.data(), x);
            CHECK(std::isnan(x.scale));
            CHECK(all_zero());
        }
        // Ties go to even codes, like the default rounding of the hardware.
        values.assign(Size, 0.0f);
        values[0] = 127.0f, values[1] = 0.5f, values[2] = 1.5f, values[3] = -2.5f, values[4] = -126.5f, values[5] = 3.4999998f;
        activation::quantize(values.data(), x);
        CHECK(x.codes[0] == 127);
        CHECK(x.codes[1] == 0);
        CHECK(x.codes[2] == 2);
        CHECK(x.codes[3] == -2);
        CHECK(x.codes[4] == -126);
        CHECK(x.codes[5] == 3);
    };
    check(std::integral_constant<std::size_t, 32>{});
    check(std::integral_constant<std::size_t, 256>{});
}

TEST_CASE("integer dot products agree with the golden products within the error of the activations") {
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        if constexpr (quant::integer_dot_format<F>) {
            const test::golden file("gguf/" + std::string(F::name));
            const auto raw = file.get<std::byte>("dot_w_raw");
            const auto x = file.f32("dot_x");
            const auto want = file.get<double>("dot_y");
            constexpr std::size_t rows = 8, cols = 1024, vectors = 3;
            const std::size_t row_bytes = raw.size() / rows;
            double error = 0, power = 0;
            for (std::size_t r = 0; r < rows; ++r) {
                std::vector<float> weights(cols);
                quant::decode_row<F>(raw.data() + r * row_bytes, cols, weights.data());
                for (std::size_t v = 0; v < vectors; ++v) {
                    double got = 0, bound = 0;
                    for (std::size_t b = 0; b < cols / F::block_size; ++b) {
                        typename F::activation::block block;
                        F::activation::quantize(x.data() + v * cols + b * F::block_size, block);
                        got += F::dot(raw.data() + r * row_bytes + b * F::block_bytes, block);
                        for (std::size_t i = 0; i < F::block_size; ++i)  // half a step, and the roundings of both scales
                            bound += std::abs(static_cast<double>(weights[b * F::block_size + i])) * 0.5001 *
                                     static_cast<double>(block.scale);
                    }
                    const double off = got - want[r * vectors + v];
                    CHECK(std::abs(off) <= bound);
                    error += off * off;
                    power += want[r * vectors + v] * want[r * vectors + v];
                }
            }
            // What the reference's own 8-bit activations cost on the same vectors, and a tenth for their scales, which it
            // rounds to half, and for ties: the luck of 24 products.
            const double reference = file.params().at("comparison").at("vec_dot_error_over_y_rms").template get<double>();
            CHECK(std::sqrt(error / power) <= 1.1 * reference);
        }
    });
}

// Registers of one instruction set, compiled for it: FRUGAL_KERNEL_ISA.
#include "frugal/device/cpu/simd.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "frugal/device/cpu/simd_integer.hpp"

namespace fg = frugal;
using isa = fg::isa::FRUGAL_KERNEL_ISA;

namespace {

std::vector<float> lanes(const fg::simd::vec<isa>& value) {
    std::vector<float> out(fg::simd::width<isa>);
    fg::simd::store<isa>(out.data(), value);
    return out;
}

}  // namespace

TEST_CASE("every bfloat16 and every signed byte is read as its value, in any lane") {
    constexpr std::size_t width = fg::simd::width<isa>;
    std::size_t wrong = 0;
    for (std::uint32_t first = 0; first < 65536; first += width) {
        fg::bfloat16 codes[width];
        for (std::uint32_t i = 0; i < width; ++i) codes[i].bits = static_cast<std::uint16_t>(first + i);
        const auto got = lanes(fg::simd::load<isa>(codes)), some = lanes(fg::simd::load_some<isa>(codes, width - 1));
        for (std::uint32_t i = 0; i < width; ++i) {
            const std::uint32_t want = (first + i) << 16;
            wrong += std::bit_cast<std::uint32_t>(got[i]) != want ? 1 : 0;
            wrong += std::bit_cast<std::uint32_t>(some[i]) != (i + 1 < width ? want : 0) ? 1 : 0;
        }
    }
    for (int first = -128; first < 128; first += static_cast<int>(width)) {
        std::int8_t codes[width];
        for (std::size_t i = 0; i < width; ++i) codes[i] = static_cast<std::int8_t>(first + static_cast<int>(i));
        const auto got = lanes(fg::simd::load<isa>(codes)), some = lanes(fg::simd::load_some<isa>(codes, width - 1));
        for (std::size_t i = 0; i < width; ++i) {
            const auto want = static_cast<float>(first + static_cast<int>(i));
            wrong += got[i] != want ? 1 : 0;
            wrong += some[i] != (i + 1 < width ? want : 0.0f) ? 1 : 0;
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("sums of several registers have the bits of each sum alone") {
    constexpr std::size_t width = fg::simd::width<isa>;
    std::mt19937 random(5);
    std::normal_distribution<float> draw;
    std::vector<float> numbers(width * width * 20);
    for (float& number : numbers) number = draw(random);
    for (std::size_t round = 0; round < 20; ++round) {
        fg::simd::vec<isa> values[width];
        std::vector<float> want;
        for (std::size_t i = 0; i < width; ++i) {
            values[i] = fg::simd::load<isa>(&numbers[(round * width + i) * width]);
            want.push_back(fg::simd::sum<isa>(values[i]));
        }
        CHECK(lanes(fg::simd::sums<isa>(values)) == want);
    }
}

TEST_CASE("the greatest lanes of several registers") {
    constexpr std::size_t width = fg::simd::width<isa>;
    std::mt19937 random(6);
    std::normal_distribution<float> draw;
    for (int round = 0; round < 50; ++round) {
        fg::simd::vec<isa> values[width];
        std::vector<float> want;
        for (std::size_t i = 0; i < width; ++i) {
            float numbers[width];
            for (float& number : numbers) number = draw(random);
            values[i] = fg::simd::load<isa>(numbers);
            want.push_back(*std::max_element(numbers, numbers + width));
        }
        CHECK(lanes(fg::simd::maxima<isa>(values)) == want);
    }
}

TEST_CASE("products of 8 and 16 bits are summed exactly, whatever the signs") {
    constexpr std::size_t shorts = fg::simd::short_integers<isa>::width, width = fg::simd::width<isa>;
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        std::int8_t a[shorts];
        std::int16_t b[shorts];
        for (std::size_t i = 0; i < shorts; ++i) {
            a[i] = static_cast<std::int8_t>(round == 0 ? -127 : static_cast<int>(random() % 255) - 127);
            b[i] =
                static_cast<std::int16_t>(round < 2 ? (round == 0 ? 32767 : -32767) : static_cast<int>(random() % 65535) - 32767);
        }
        fg::simd::ints<isa> values[width];
        std::vector<std::int32_t> want(width);
        for (std::size_t r = 0; r < width; ++r) {
            values[r] = fg::simd::ints<isa>{} + static_cast<std::int32_t>(r);
            values[r] = fg::simd::add_pair_products<isa>(values[r], fg::simd::load_shorts<isa>(a), fg::simd::load_shorts<isa>(b));
            want[r] = static_cast<std::int32_t>(r * width);
            for (std::size_t i = 0; i < shorts; ++i) want[r] += a[i] * b[i];
        }
        const auto got = fg::simd::sums<isa>(values);
        for (std::size_t r = 0; r < width; ++r) CHECK(got[r] == want[r]);
    }
}

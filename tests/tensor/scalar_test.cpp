// half and bfloat16: every code, and the rounding of floats, against Eigen's types.
#include "frugal/tensor/scalar.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

// Eigen's own code does not build with all of the project's warnings.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#endif
#include <Eigen/Core>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

using frugal::bfloat16;
using frugal::half;
using frugal::to_bfloat16;
using frugal::to_float;
using frugal::to_half;

namespace {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Floats that matter for rounding: all signs and exponents with mantissas around ties, and random ones.
std::vector<float> hard_floats() {
    std::vector<float> out;
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
        for (const std::uint32_t mantissa : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u,
                                             0x3001u, 0x17FFFu, 0x18000u, 0x18001u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x7FEFFFu, 0x7FF000u,
                                             0x7F7FFFu, 0x7F8000u, 0x7FFFFFu})
            for (const std::uint32_t sign : {0u, 0x80000000u}) out.push_back(from_bits(sign | (exponent << 23) | mantissa));
    std::mt19937 engine(2);
    const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
    for (int i = 0; i < 200000; ++i) out.push_back(from_bits(random()));
    // Around the range of halves, where every case of to_half lies.
    for (int i = 0; i < 200000; ++i) out.push_back(from_bits((random() & 0x80FFFFFFu) | ((100u + random() % 45u) << 23)));
    return out;
}

}  // namespace

TEST_CASE("every half and bfloat16 code becomes the float that Eigen says") {
    std::size_t halves = 0, brains = 0;
    for (std::uint32_t code = 0; code < 65536; ++code) {
        const auto bits = static_cast<std::uint16_t>(code);
        const float a = to_float(half{bits}), b = to_float(bfloat16{bits});
        const float want_a = static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits));
        const float want_b = static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(bits));
        halves += std::isnan(want_a) ? !std::isnan(a) : bits_of(a) != bits_of(want_a);
        brains += std::isnan(want_b) ? !std::isnan(b) : bits_of(b) != bits_of(want_b);
        // And back: every code that is a number survives.
        if (!std::isnan(a)) halves += to_half(a).bits != bits;
        if (!std::isnan(b)) brains += to_bfloat16(b).bits != bits;
        if (std::isnan(a)) halves += !std::isnan(to_float(to_half(a))) || std::signbit(to_float(to_half(a))) != std::signbit(a);
        if (std::isnan(b))
            brains += !std::isnan(to_float(to_bfloat16(b))) || std::signbit(to_float(to_bfloat16(b))) != std::signbit(b);
    }
    CHECK(halves == 0);
    CHECK(brains == 0);
    static_assert(to_float(half{0x3C00}) == 1.0f && to_float(half{0x0001}) == 0x1p-24f && to_half(1.0f).bits == 0x3C00);
    static_assert(to_float(bfloat16{0x3F80}) == 1.0f && to_bfloat16(1.0f).bits == 0x3F80);
}

TEST_CASE("floats round to half and bfloat16 as Eigen rounds them") {
    std::size_t halves = 0, brains = 0;
    for (const float value : hard_floats()) {
        const half h = to_half(value);
        const bfloat16 b = to_bfloat16(value);
        if (std::isnan(value)) {
            halves += !std::isnan(to_float(h)) || std::signbit(to_float(h)) != std::signbit(value);
            brains += !std::isnan(to_float(b)) || std::signbit(to_float(b)) != std::signbit(value);
            continue;
        }
        halves += h.bits != Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(value));
        brains += b.bits != Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(value));
    }
    CHECK(halves == 0);
    CHECK(brains == 0);
}

TEST_CASE("C47 NaN, ties, subnormals and overflow on the way to bfloat16") {
    const auto rounded = [](std::uint32_t bits) { return to_bfloat16(from_bits(bits)).bits; };
    CHECK(std::isnan(to_float(bfloat16{rounded(0x7F800001u)})));
    CHECK(std::isnan(to_float(bfloat16{rounded(0xFF800001u)})));
    CHECK(std::isnan(to_float(bfloat16{rounded(0x7FFFFFFFu)})));
    CHECK(rounded(0x3F808000u) == 0x3F80u);
    CHECK(rounded(0x3F818000u) == 0x3F82u);
    CHECK(rounded(0x3F808001u) == 0x3F81u);
    CHECK(rounded(0x7F7FFFFFu) == 0x7F80u);
    CHECK(rounded(0xFF7FFFFFu) == 0xFF80u);
    CHECK(rounded(0x7F800000u) == 0x7F80u);
    CHECK(rounded(0x00000001u) == 0x0000u);
    CHECK(rounded(0x00008001u) == 0x0001u);
    CHECK(rounded(0x007FFFFFu) == 0x0080u);
    CHECK(rounded(0x80000000u) == 0x8000u);
}

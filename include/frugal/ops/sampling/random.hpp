#pragma once
/// A small random generator whose numbers are the same with every compiler and standard library.
#include <cstdint>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// SplitMix64 (Steele, Lea and Flood 2014). The whole state is one number.
class FRUGAL_FLAGGED random_generator {
public:
    explicit constexpr random_generator(std::uint64_t seed = 0) noexcept : state_(seed) {}

    [[nodiscard]] constexpr std::uint64_t state() const noexcept { return state_; }
    constexpr void set_state(std::uint64_t state) noexcept { state_ = state; }

    [[nodiscard]] constexpr std::uint64_t next() noexcept {
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t x = state_;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
    }
    /// Uniform in [0, 1), 53 bits.
    [[nodiscard]] constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    std::uint64_t state_;
};

}  // namespace ops

FRUGAL_NAMESPACE_END

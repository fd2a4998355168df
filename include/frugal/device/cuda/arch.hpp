#pragma once
/// GPU architectures that kernels are compiled for, as tags.
#include <concepts>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// Compute capability 8.0 and later of major version 8 (A100; RTX 30 and 40).
struct sm_80 {
    static constexpr std::string_view name = "sm_80";
    static constexpr int major = 8, minor = 0;
};

/// Compute capability 9.0 (H100, H200).
struct sm_90 {
    static constexpr std::string_view name = "sm_90";
    static constexpr int major = 9, minor = 0;
};

/// Compute capability 12.0 and later of major version 12 (RTX 50, RTX PRO 6000).
struct sm_120 {
    static constexpr std::string_view name = "sm_120";
    static constexpr int major = 12, minor = 0;
};

/// A tag of an architecture: a name, and the least compute capability whose machine code it is.
template <class A>
concept cuda_arch = requires {
    { A::name } -> std::convertible_to<std::string_view>;
    { A::major } -> std::convertible_to<int>;
    { A::minor } -> std::convertible_to<int>;
};

/// Whether code for Arch runs on a device of this compute capability: same major version, minor no lower.
template <cuda_arch Arch>
[[nodiscard]] constexpr bool runs_on(int major, int minor) noexcept {
    return major == Arch::major && minor >= Arch::minor;
}

}  // namespace device

FRUGAL_NAMESPACE_END

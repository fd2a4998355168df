#pragma once
/// What every device target has in common.
#include <concepts>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"
#include "frugal/core/counters.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// A device target: a name and a counter policy. Each family adds its own concept (cpu_target, …).
template <class D>
concept target = requires(D& d) {
    { D::name } -> std::convertible_to<std::string_view>;
    requires counter_policy<std::remove_cvref_t<decltype(d.counters())>>;
};

}  // namespace device

FRUGAL_NAMESPACE_END

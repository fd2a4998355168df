#pragma once
/// The weight loading policy: whether host weights whose packed images are already resident on the device are prepared again.
#include <concepts>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What every weight loading policy says: its name, and whether work for resident images is skipped.
template <class P>
concept weight_loading_policy = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    typename std::bool_constant<P::skips_resident>;
};

/// Every pass prepares every host weight that its layer declares, whether or not anybody reads the result.
struct reload_always {
    static constexpr std::string_view name = "reload_always";
    static constexpr bool skips_resident = false;
};

/// What is used where no policy is named.
using default_weight_loading = reload_always;

static_assert(weight_loading_policy<default_weight_loading>,
              "frugal: the default weight loading must model reuse::weight_loading_policy");

}  // namespace reuse

FRUGAL_NAMESPACE_END

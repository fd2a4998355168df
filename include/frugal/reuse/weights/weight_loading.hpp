#pragma once
/// The weight loading policy: whether host weights that no reader will read in a step are prepared nevertheless.
#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Is told of a matrix of the file once its image is resident: nothing reads these bytes again unless the image is lost, so that
/// their pages may be given back (io::mapped_file::advise).
using source_unneeded = std::function<void(std::span<const std::byte>)>;

/// What every weight loading policy says: its name, and whether weights that nobody will read are left as they are.
template <class P>
concept weight_loading_policy = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    typename std::bool_constant<P::skips_resident>;
};

/// A step prepares the weights that a reader of the step reads: on a device that holds every packed image, none.
struct FRUGAL_FLAGGED skip_resident {
    static constexpr std::string_view name = "skip_resident";
    static constexpr bool skips_resident = true;
};

/// A step prepares every weight that its layer declares, whether or not anybody reads the result: the wasteful arm of a
/// comparison.
struct FRUGAL_FLAGGED reload_always {
    static constexpr std::string_view name = "reload_always";
    static constexpr bool skips_resident = false;
};

/// What is used where no policy is named.
using default_weight_loading = skip_resident;

static_assert(weight_loading_policy<default_weight_loading> && weight_loading_policy<reload_always>,
              "frugal: the default weight loading must model reuse::weight_loading_policy");

}  // namespace reuse

FRUGAL_NAMESPACE_END

#pragma once
/// Where weights come from: named tensors of any file format, seen alike by the binder.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// A tensor of a file: `shape` outermost dimension first, rows of blocks contiguous.
struct FRUGAL_FLAGGED source_tensor {
    std::string_view name;
    quant::type_id type{};
    std::vector<std::uint64_t> shape;
    std::span<const std::byte> bytes;
    std::string_view type_name = {};  ///< for messages; empty: the number of `type` must do
};

/// Finds tensors by the name they have in the file; `nullopt` where there is none. A tensor that is there but broken is an error.
template <class S>
concept tensor_source = requires(const S& source, const std::string& name) {
    { source.find(name) } -> std::same_as<result<std::optional<source_tensor>>>;
};

}  // namespace model

FRUGAL_NAMESPACE_END

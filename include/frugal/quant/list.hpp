#pragma once
/// Lists of formats a consumer wants compiled, and the visitor from a tensor's run-time type into them.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/quant/format.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

namespace detail {
[[gnu::noinline, gnu::cold]] FRUGAL_FLAGGED inline std::string join_names(std::span<const std::string_view> names) {
    std::string out;
    for (const std::string_view name : names) out.append(out.empty() ? "" : " ").append(name);
    return out;
}
[[gnu::noinline, gnu::cold]] FRUGAL_FLAGGED inline error not_in_list(type_id type, std::span<const std::string_view> names) {
    return fail(errc::unsupported_format, "tensor type ", static_cast<std::uint32_t>(type),
                " is not among the formats compiled: ", join_names(names));
}
}  // namespace detail

/// The formats that an instantiation can read. Your own formats stand beside the library's.
template <class... F>
struct FRUGAL_FLAGGED list : type_list<F...> {
    static_assert((format<F> && ...),
                  "frugal: every member of quant::list must model quant::format: static name, type, block_size, block_bytes "
                  "and decode(const std::byte*, float*) noexcept; see examples/custom_format");
    static constexpr std::array<std::string_view, sizeof...(F)> format_names{F::name...};
    [[nodiscard]] static std::string names() { return detail::join_names(format_names); }
};

template <class L>
inline constexpr bool is_list = false;
template <class... F>
inline constexpr bool is_list<list<F...>> = true;

/// A quant::list.
template <class L>
concept format_list = is_list<L>;

/// Put `FRUGAL_REQUIRE_FORMATS(Formats);` first into a function that takes a list as a parameter.
#define FRUGAL_REQUIRE_FORMATS(...)                                                                                       \
    static_assert(::frugal::quant::format_list<__VA_ARGS__>,                                                              \
                  "frugal: a list of formats is needed here, even of a single one; write quant::list<quant::q4_k>, with " \
                  "all formats that the file may hold, or quant::all")

namespace detail {
template <class... F, class Visitor>
bool visit_list(list<F...>, type_id type, Visitor&& visitor) {
    return ((F::type == type && (visitor(type_tag<F>{}), true)) || ...);
}
}  // namespace detail

/// Calls `visitor(type_tag<F>{})` for the format F of the list whose type is `type`.
/// Errors: unsupported_format, naming the type and the list.
template <class Formats, class Visitor>
[[nodiscard]] status visit(type_id type, Visitor&& visitor) {
    FRUGAL_REQUIRE_FORMATS(Formats);
    if (detail::visit_list(Formats{}, type, visitor)) return {};
    return detail::not_in_list(type, Formats::format_names);
}

}  // namespace quant

FRUGAL_NAMESPACE_END

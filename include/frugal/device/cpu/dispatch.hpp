#pragma once
/// Choice of the instruction set at run time, for programs that link the kernels of several.
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/isa.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

namespace detail {

template <class List>
inline constexpr bool is_isa_list = false;
template <class... Isa>
inline constexpr bool is_isa_list<type_list<Isa...>> = sizeof...(Isa) != 0 && (isa::tag<Isa> && ...);

/// Calls `f(type_tag<Isa>{})` for every member, in order.
template <class... Isa, class F>
FRUGAL_FLAGGED void each_isa(type_list<Isa...>, F&& f) {
    (f(type_tag<Isa>{}), ...);
}

}  // namespace detail

/// A non-empty type_list of instruction set tags, from the least to the most able.
template <class L>
concept isa_list = detail::is_isa_list<L>;

/// Members of the list that this machine can run, separated by spaces.
template <isa_list List = isa::all>
[[nodiscard]] FRUGAL_FLAGGED std::string supported_isas() {
    std::string out;
    detail::each_isa(List{}, [&]<class Isa>(type_tag<Isa>) {
        if (!isa::supported<Isa>()) return;
        if (!out.empty()) out += ' ';
        out += Isa::name;
    });
    return out;
}

/// What the environment variable FRUGAL_ISA forces; empty where it is unset or empty.
[[nodiscard]] FRUGAL_FLAGGED inline std::string_view forced_isa() {
    const char* value = std::getenv("FRUGAL_ISA");
    return value == nullptr ? std::string_view() : std::string_view(value);
}

/// Name of the member of `List` to run: the one called `forced`, or, where that is empty, the most able one of this machine.
/// Errors: invalid_argument (no member has that name), unsupported (this machine cannot run it); both list what is possible.
template <isa_list List = isa::all>
[[nodiscard]] result<std::string_view> select_isa(std::string_view forced = forced_isa()) {
    std::string_view best;
    bool known = false;
    detail::each_isa(List{}, [&]<class Isa>(type_tag<Isa>) {
        known = known || Isa::name == forced;
        if ((forced.empty() || Isa::name == forced) && isa::supported<Isa>()) best = Isa::name;
    });
    if (!best.empty()) return best;
    const std::string possible = supported_isas<List>();
    const std::string_view choices = possible.empty() ? std::string_view("none of those compiled") : std::string_view(possible);
    if (forced.empty()) return fail(errc::unsupported, "this machine runs no instruction set of those compiled");
    if (!known) return fail(errc::invalid_argument, "instruction set '", forced, "' is unknown; possible here: ", choices);
    return fail(errc::unsupported, "this machine cannot run instruction set '", forced, "'; possible here: ", choices);
}

/// Calls `f(type_tag<Isa>{})` for the member that select_isa chooses. `f` returns nothing or a status, which is passed on.
/// Errors: those of select_isa and of `f`.
///
///     dispatch<isa::all>([&]<class Isa>(type_tag<Isa>) { device::cpu<Isa> dev(pool); return run(dev); });
template <isa_list List = isa::all, class F>
[[nodiscard]] status dispatch(std::string_view forced, F&& f) {
    FRUGAL_TRY_ASSIGN(const std::string_view chosen, select_isa<List>(forced));
    status out;
    detail::each_isa(List{}, [&]<class Isa>(type_tag<Isa> tag) {
        if (Isa::name != chosen) return;
        if constexpr (std::is_same_v<decltype(f(tag)), status>) {
            out = f(tag);
        } else {
            static_assert(std::is_void_v<decltype(f(tag))>,
                          "frugal: the function given to device::dispatch returns void or status");
            f(tag);
        }
    });
    return out;
}

/// As above; the environment variable FRUGAL_ISA may force the choice.
template <isa_list List = isa::all, class F>
[[nodiscard]] status dispatch(F&& f) {
    return dispatch<List>(forced_isa(), std::forward<F>(f));
}

}  // namespace device

FRUGAL_NAMESPACE_END

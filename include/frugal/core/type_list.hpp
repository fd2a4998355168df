#pragma once
/// Compile-time lists of types.
#include <cstddef>
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

template <class... T>
struct type_list {
    static constexpr std::size_t size = sizeof...(T);
    template <class X>
    static constexpr bool contains = (std::is_same_v<X, T> || ...);
    /// Place of a type's first occurrence, from 0; `size` if it is not there.
    template <class X>
    [[nodiscard]] static constexpr std::size_t index_of() noexcept {
        std::size_t at = 0, found = size;
        ((found == size && std::is_same_v<X, T> ? void(found = at++) : void(++at)), ...);
        return found;
    }
};

/// Carries a type as a value, for generic lambdas: `[]<class T>(type_tag<T>) { … }`.
template <class T>
struct type_tag {
    using type = T;
};

/// Use in a primary template's static_assert, so that it fires only when instantiated.
template <class...>
inline constexpr bool dependent_false = false;

FRUGAL_NAMESPACE_END

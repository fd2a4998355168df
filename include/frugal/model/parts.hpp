#pragma once
/// A specification's parts as types, and whether sizes fit them.
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/convention.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/policies.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// The types of a specification's weights do not depend on policies: what they are for default ones.
template <specification Spec, class Convention = convention::gguf, class Policies = policies<>>
struct FRUGAL_FLAGGED parts_of {
    using build = model::build<Convention, Policies>;
    using layers = typename Spec::template layers<build>;
    using kinds = typename layers::kinds;
    using feed_forward = typename Spec::template feed_forward<build>;
    using residual = typename Spec::template residual<build>;
    using modules = typename Spec::template modules<build>;
    static constexpr bool has_modules = !std::is_same_v<modules, no_modules>;

    /// Calls `f(type_tag<Kind>{}) -> status` for the kind of a layer.
    template <class F>
    [[nodiscard]] static status with_kind(std::size_t kind, F&& f) {
        return visit(kinds{}, kind, f);
    }

private:
    template <class... Kind, class F>
    [[nodiscard]] static status visit(type_list<Kind...>, std::size_t kind, F& f) {
        status out;
        std::size_t at = 0;
        (void)((at++ == kind ? (out = f(type_tag<Kind>{}), true) : false) || ...);
        return out;
    }
};

/// Numbers of the layers' kinds. Errors: unsupported (a layer that the specification has not).
template <specification Spec>
[[nodiscard]] result<std::vector<std::size_t>> kinds_of_layers(const config& c) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < c.layers.size(); ++i) {
        FRUGAL_TRY_ASSIGN(const std::size_t kind, parts_of<Spec>::layers::kind_of(i, !c.is_attention(i)));
        out.push_back(kind);
    }
    return out;
}

/// Checks that the sizes are those of a model of `Spec` and hang together; the message names the offending size.
/// Errors: invalid_argument, unsupported.
template <specification Spec>
[[nodiscard]] status validate(const config& c) {
    using parts = parts_of<Spec>;
    FRUGAL_TRY(c.positive(c.vocabulary, "vocabulary"));
    FRUGAL_TRY(c.positive(c.hidden, "hidden size"));
    FRUGAL_TRY(c.positive(c.context_length, "context length"));
    FRUGAL_TRY(c.positive(c.layers.size(), "layer count"));
    if (!(c.rms_epsilon > 0) || c.rms_epsilon > 1) return fail(errc::invalid_argument, "rms epsilon is ", c.rms_epsilon);
    FRUGAL_TRY_ASSIGN(const std::vector<std::size_t> kinds, kinds_of_layers<Spec>(c));
    for (std::size_t kind = 0; kind < parts::kinds::size; ++kind)
        if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
            FRUGAL_TRY(parts::with_kind(kind, [&]<class Kind>(type_tag<Kind>) { return Kind::validate_sizes(c); }));
    FRUGAL_TRY(parts::feed_forward::validate_sizes(c));
    FRUGAL_TRY(parts::residual::validate_sizes(c));
    if constexpr (parts::has_modules) FRUGAL_TRY(parts::modules::validate_sizes(c));
    return {};
}

}  // namespace model

FRUGAL_NAMESPACE_END

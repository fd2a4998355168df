#pragma once
/// The weights of a model, bound by role: big matrices as views into the file, small vectors as f32 copies.
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "frugal/model/config.hpp"
#include "frugal/model/parts.hpp"
#include "frugal/model/spec.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

namespace detail {

template <class List>
struct FRUGAL_FLAGGED mixer_weights;
template <class... Kind>
struct mixer_weights<type_list<Kind...>> {
    template <class... W>
    static std::variant<W...> as_variant(type_list<W...>);
    using type = decltype(as_variant(unique<typename Kind::weights...>{}));
};

template <class Modules>
struct FRUGAL_FLAGGED weights_of_modules {
    using type = typename Modules::weights;
};
template <>
struct FRUGAL_FLAGGED weights_of_modules<no_modules> {
    using type = no_modules;
};

}  // namespace detail

/// One decoder layer of a specification.
template <specification Spec>
struct FRUGAL_FLAGGED layer_weights {
    using parts = parts_of<Spec>;
    typename detail::mixer_weights<typename parts::kinds>::type mixer;  ///< of the layer's kind
    typename parts::feed_forward::weights feed_forward;
    typename parts::residual::weights around_mixer, around_feed_forward;

    /// The mixer's weights, of a type that its kind has.
    template <class W>
    [[nodiscard]] const W& mixer_as() const noexcept {
        return *std::get_if<W>(&mixer);
    }
};

/// Weights of a whole model. Views point into the file's mapping, which must outlive them.
template <specification Spec>
struct FRUGAL_FLAGGED weights {
    using parts = parts_of<Spec>;
    quant::weight_view embedding, head;  ///< `head` equals `embedding` in tied models
    typename parts::residual::weights output;
    std::vector<layer_weights<Spec>> layers;
    std::vector<typename detail::weights_of_modules<typename parts::modules>::type> modules;

    /// Takes over a small vector and returns where it lives.
    std::span<const float> keep(std::vector<float> values) {
        kept_.push_back(std::move(values));
        return kept_.back();
    }

private:
    std::vector<std::vector<float>> kept_;  // moving an inner vector does not move its elements
};

}  // namespace model

FRUGAL_NAMESPACE_END

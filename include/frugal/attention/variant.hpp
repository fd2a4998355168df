#pragma once
/// The attention variant policy: what gdn, full, qsa and variants of your own have in common.
#include <concepts>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "frugal/attention/batch.hpp"
#include "frugal/attention/step.hpp"
#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// What a layer's state is made for.
struct FRUGAL_FLAGGED state_sizes {
    std::size_t sequences = 1;
    std::size_t max_tokens = 0;   ///< most tokens of a sequence
    std::size_t checkpoints = 0;  ///< newest tokens that can be taken back from a state that cannot simply forget them
};

/// A stateless description of one kind of attention layer, for a model's pattern (model/spec.hpp) or by itself:
/// - `name`; `is_recurrent`: which of a file's layers it computes, those that the file calls linear (or recurrent) or the others;
/// - `dims`: its sizes; `weights`: views of what it reads from a file; `products`: its products with these (a
///   reuse::product_list);
/// - `state`: what it keeps of every sequence, with the complete set of operations (parsing_state), made by
///   `make_state(dims, state_sizes) -> result<state>`;
/// - `forward(pass, layer, dims, weights, state, step, x, y) -> status`, for the passes that it runs in: appends the rows of x to
///   their sequences; x and y are [rows, hidden]. `layer`: its number, under which the pass knows its products.
template <class V>
concept variant = requires(const typename V::dims& dims, const state_sizes& sizes) {
    { V::name } -> std::convertible_to<std::string_view>;
    typename std::bool_constant<V::is_recurrent>;
    typename V::weights;
    typename V::products::weights;
    { V::make_state(dims, sizes) } -> std::same_as<result<typename V::state>>;
}
&&std::is_copy_constructible_v<typename V::weights>&& parsing_state<typename V::state>;

/// Put `FRUGAL_REQUIRE_ATTENTION_VARIANT(V);` into a class that takes a variant as a parameter.
#define FRUGAL_REQUIRE_ATTENTION_VARIANT(...)                                                                          \
    static_assert(::frugal::attention::variant<__VA_ARGS__>,                                                           \
                  "frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and "    \
                  "state, and make_state(dims, state_sizes); the state must model attention::parsing_state (reserve, " \
                  "snapshot, check_fits, restore, rollback, copy, clear, save, parse, load); see attention/full for one")

}  // namespace attention

FRUGAL_NAMESPACE_END

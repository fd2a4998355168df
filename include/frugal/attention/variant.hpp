#pragma once
/// The attention variant policy: what gdn, full, qsa and variants of your own have in common.
#include <concepts>
#include <type_traits>

#include "frugal/attention/batch.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/target.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// A stateless description of one kind of attention layer:
/// - `dims`: its sizes; `weights`: views of what it reads from a file;
/// - `state`: what it keeps of every sequence, with the complete set of operations (sequence_state).
template <class V>
concept variant = requires {
    typename V::dims;
    typename V::weights;
    typename V::state;
}
&&std::is_copy_constructible_v<typename V::weights>&& sequence_state<typename V::state>;

/// A variant that runs with weights of these formats on this device:
/// `forward<Formats>(dev, scratch, dims, weights, state, batch, shared …, x, y) -> status`, x and y [rows, hidden].
/// `Shared` lists the inputs that layers share and the variant takes by constant reference (qsa: reuse::qsa_layout).
template <class V, class Formats, class Device, class... Shared>
concept runs_on = variant<V> && quant::format_list<Formats> && device::target<Device> &&
    requires(Device& dev, workspace& scratch, const typename V::dims& dims, const typename V::weights& weights,
             typename V::state& state, const batch& rows, const Shared&... shared, matrix_view<const float> x,
             matrix_view<float> y) {
    { V::template forward<Formats>(dev, scratch, dims, weights, state, rows, shared..., x, y) } -> std::same_as<status>;
};

/// Put `FRUGAL_REQUIRE_ATTENTION_VARIANT(V);` into a class that takes a variant as a parameter.
#define FRUGAL_REQUIRE_ATTENTION_VARIANT(...)                                                                       \
    static_assert(::frugal::attention::variant<__VA_ARGS__>,                                                        \
                  "frugal: an attention variant needs the types dims, weights and state, and the state must model " \
                  "attention::sequence_state (reserve, snapshot, restore, rollback, copy, clear, save, load); "     \
                  "see attention/gdn for one")

}  // namespace attention

FRUGAL_NAMESPACE_END

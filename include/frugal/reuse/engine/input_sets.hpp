#pragma once
/// The QSA inputs of all layers of an engine's model: which layers read which set is known when compiling.
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/inputs.hpp"
#include "frugal/reuse/engine/ubatch.hpp"
#include "frugal/reuse/inputs/shared_inputs.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// `Ratios`: those of the QSA layers in order, as a constexpr std::array of std::size_t. Causality, bias and grouping are common
/// to all layers; layers with others have sets of their own in another object.
template <const auto& Ratios, class Shared = default_shared_inputs, causality Sees = causality::causal, class Bias = bias_none,
          class Grouping = group_by_rank>
class FRUGAL_FLAGGED engine_input_sets {
    static_assert(shared_input_policy<Shared>,
                  "frugal: engine_input_sets<Ratios, Shared, ...> takes a way to share inputs: write reuse::incremental, "
                  "reuse::memoised, reuse::shared or reuse::per_layer");

public:
    /// The set that each layer reads, and how many there are.
    static constexpr auto set_of = map_layers<Shared>(Ratios);
    static constexpr std::size_t sets = count_sets<Shared>(Ratios);

    /// See engine_inputs::create. Errors: invalid_argument.
    [[nodiscard]] static result<engine_input_sets> create(const cells& like, std::size_t tokens) {
        if (tokens == 0) return fail(errc::invalid_argument, "inputs for batches of no tokens");
        return make(like, tokens, std::make_index_sequence<sets>{});
    }

    /// What layer `Layer` (counted among the QSA layers) reads.
    template <std::size_t Layer>
    [[nodiscard]] auto& of_layer() noexcept {
        static_assert(Layer < Ratios.size(), "frugal: engine_input_sets::of_layer<Layer> counts the QSA layers alone, from 0");
        return std::get<set_of[Layer]>(inputs_);
    }
    /// Makes every set that of the batch; see engine_inputs::fill. An error may leave some sets filled.
    template <counter_policy Counters>
    [[nodiscard]] status fill(const cells& held, const ubatch& tokens, Counters& counters) {
        status done;
        std::apply([&](auto&... set) { static_cast<void>(((done = set.fill(held, tokens, counters), done.has_value()) && ...)); },
                   inputs_);
        return done;
    }
    [[nodiscard]] std::size_t bytes() const noexcept {
        return std::apply([](const auto&... set) { return (std::size_t{0} + ... + set.bytes()); }, inputs_);
    }

private:
    static constexpr std::size_t ratio_of(std::size_t set) noexcept {
        std::size_t layer = 0;
        while (set_of[layer] != set) ++layer;
        return Ratios[layer];
    }
    template <std::size_t Set>
    using inputs_of = engine_inputs<ratio_of(Set), Shared, Sees, Bias, Grouping>;
    template <class>
    struct tuple_of;
    template <std::size_t... Set>
    struct tuple_of<std::index_sequence<Set...>> {
        using type = std::tuple<inputs_of<Set>...>;
    };
    using tuple_type = typename tuple_of<std::make_index_sequence<sets>>::type;

    explicit engine_input_sets(tuple_type made) : inputs_(std::move(made)) {}
    template <std::size_t... Set>
    [[nodiscard]] static engine_input_sets make(const cells& like, std::size_t tokens, std::index_sequence<Set...>) {
        return engine_input_sets(tuple_type(inputs_of<Set>::create(like, tokens).value()...));
    }

    tuple_type inputs_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

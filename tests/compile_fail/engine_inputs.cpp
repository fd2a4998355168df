// fails NO_RATIO: frugal: an engine's QSA blocks hold 1 to 64 tokens: write engine_inputs<4>
// fails LARGE_RATIO: frugal: an engine's QSA blocks hold 1 to 64 tokens: write engine_inputs<4>
// fails NO_POLICY: frugal: engine_inputs<Ratio, Shared, ...> takes a way to share inputs: write reuse::incremental, reuse::memoised, reuse::shared or reuse::per_layer
// fails NO_BIAS_POLICY: frugal: engine_inputs<Ratio, Shared, Sees, Bias> takes a bias: write reuse::bias_none, reuse::bias_block<> or reuse::bias_cell<>
// fails NO_GROUPING: frugal: engine_inputs<Ratio, Shared, Sees, Bias, Grouping> groups tokens into blocks: write reuse::group_by_rank or reuse::group_by_position
// fails NO_BIAS: frugal: these engine_inputs have no bias; write reuse::bias_block<> or reuse::bias_cell<> for one
// fails NO_BIAS_WIDTH: frugal: these engine_inputs have no bias; write reuse::bias_block<> or reuse::bias_cell<> for one
// fails NO_VIEWS: frugal: these engine_inputs have a bias; views() belongs to reuse::bias_none
// fails NO_SETS_POLICY: frugal: engine_input_sets<Ratios, Shared, ...> takes a way to share inputs: write reuse::incremental, reuse::memoised, reuse::shared or reuse::per_layer
// fails NO_SUCH_LAYER: frugal: engine_input_sets::of_layer<Layer> counts the QSA layers alone, from 0
#include <array>

#include "frugal/reuse/engine/input_sets.hpp"

namespace reuse = frugal::reuse;
constexpr std::array<std::size_t, 3> ratios = {4, 8, 4};

int main() {
    const auto held = reuse::cells::create(1, 64, 1).value();
#if defined(NO_RATIO)
    using inputs = reuse::engine_inputs<0>;
#elif defined(LARGE_RATIO)
    using inputs = reuse::engine_inputs<65>;
#elif defined(NO_POLICY)
    using inputs = reuse::engine_inputs<4, int>;
#elif defined(NO_BIAS_POLICY)
    using inputs = reuse::engine_inputs<4, reuse::shared, reuse::causality::causal, float>;
#elif defined(NO_GROUPING)
    using inputs = reuse::engine_inputs<4, reuse::shared, reuse::causality::causal, reuse::bias_none, reuse::shared>;
#elif defined(NO_VIEWS)
    using inputs = reuse::engine_inputs<4, reuse::shared, reuse::causality::causal, reuse::bias_cell<>>;
#else
    using inputs = reuse::engine_inputs<4>;
#endif
    auto one = inputs::create(held, 8).value();
#if defined(NO_BIAS)
    (void)one.bias();
#elif defined(NO_BIAS_WIDTH)
    (void)one.bias_width();
#else
    (void)one.views();
#endif
#if defined(NO_SETS_POLICY)
    using sets = reuse::engine_input_sets<ratios, int>;
#else
    using sets = reuse::engine_input_sets<ratios>;
#endif
    auto all = sets::create(held, 8).value();
#if defined(NO_SUCH_LAYER)
    (void)all.of_layer<3>();
#else
    (void)all.of_layer<2>();
#endif
}

// fails NOTHING_TO_PACK: frugal: this device keeps no weight images, so there is nothing to pack; write policies<device::packed_cpu<>>
// fails NOT_OF_THE_LAYER: frugal: this product is not in the layer's product_list; add it there, so that its weights are loaded
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/model/transformer.hpp"

namespace fg = frugal;
namespace app {

using device_type = fg::device::packed_cpu<fg::isa::baseline>;

struct weights {
    fg::quant::weight_view gate, up, down;
};
using down = fg::reuse::product<&weights::down>;
using gate_up = fg::reuse::product<&weights::gate, &weights::up>;
using products = fg::reuse::product_list<weights, gate_up, down>;
using store = fg::reuse::image_store<products, device_type, fg::quant::all>;
#if defined(NOT_OF_THE_LAYER)
using multiplied = fg::reuse::product<&weights::up, &weights::down>;
#else
using multiplied = gate_up;
#endif
fg::status multiply(store::step& step, fg::matrix_view<const float> x, fg::matrix_view<float> y) {
    return step.multiply<multiplied>(x, {y, y});
}

using model =
    fg::model::transformer<fg::model::qwen35, fg::model::convention::gguf, fg::policies<device_type, fg::quant::list<fg::quant::f32>>>;
fg::status forward(const model& m, model::pass_type& pass, model::state& state, const fg::model::token_batch& tokens,
                   fg::matrix_view<float> logits) {
    return m.forward(pass, state, tokens, logits);
}

#if defined(NOTHING_TO_PACK)
using packing = fg::model::transformer<fg::model::qwen35, fg::model::convention::gguf,
                                           fg::policies<fg::device::cpu<>, fg::quant::list<fg::quant::f32>>>;
#else
using packing = model;
#endif
fg::status pack(const packing& m, packing::pass_type& pass) {
    return m.pack(pass);
}

}  // namespace app

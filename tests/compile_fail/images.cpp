// fails NO_STORE: frugal: this device keeps weight images; make a store with make_store() and pass it to forward
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
fg::status forward(const model& m, device_type& device, fg::workspace& scratch, model::store_type& images, model::state& state,
                   const fg::model::token_batch& tokens, fg::matrix_view<float> logits) {
#if defined(NO_STORE)
    (void)images;
    return m.forward(device, scratch, state, tokens, logits);
#else
    return m.forward(device, scratch, images, state, tokens, logits);
#endif
}

#if defined(NOTHING_TO_PACK)
using packing = fg::model::transformer<fg::model::qwen35, fg::model::convention::gguf, fg::policies<fg::quant::list<fg::quant::f32>>>;
#else
using packing = model;
#endif
fg::status pack(const packing& m, packing::device_type& device, fg::workspace& scratch, packing::store_type& images) {
    return m.pack(device, scratch, images);
}

}  // namespace app

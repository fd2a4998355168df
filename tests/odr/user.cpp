// A user's file: a model by one device, whatever the flags, and operators by themselves. USER names its function.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frugal/frugal.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/model/gguf_loader.hpp"

namespace fg = frugal;

using formats = fg::quant::list<fg::quant::f32, fg::quant::q4_k>;
using device_type = fg::device::cpu<fg::isa::baseline>;
using model_type = fg::model::transformer<fg::model::qwen4exp<>, fg::model::convention::gguf, fg::policies<device_type, formats>>;

fg::status USER(const std::string& path, std::span<float> logits) {
    FRUGAL_TRY_ASSIGN(const auto file, fg::io::gguf_file::open(path));
    FRUGAL_TRY_ASSIGN(const auto sizes, fg::model::read_config(file));
    FRUGAL_TRY_ASSIGN(auto weights, (fg::model::read_weights<fg::model::qwen4exp<>, formats>(file, sizes, {})));
    FRUGAL_TRY_ASSIGN(const auto model, model_type::create(sizes, std::move(weights)));
    FRUGAL_TRY_ASSIGN(auto state, model.make_state({1, 64, 4}));
    device_type device;
    FRUGAL_TRY_ASSIGN(auto pass, model.make_pass(device));
    std::uint32_t best[1];
    fg::ops::top_indices(logits, 1, best);
    const auto token = static_cast<std::int32_t>(best[0]);
    const fg::attention::segment whole{fg::attention::sequence_id{0}, 0, 1};
    FRUGAL_TRY(model.forward(pass, state, {{&token, 1}, {&whole, 1}}, {logits.data(), 1, logits.size()}));
    return state.rollback(fg::attention::sequence_id{0}, 1);
}

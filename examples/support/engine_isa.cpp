// Instantiates every model for the instruction set FRUGAL_ENGINE_ISA. Built with the project's plain flags: only the kernels,
// which are linked in, are compiled for the instruction set.
#include "engine_isa.hpp"

#include <utility>

#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/hugging_face_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "model_file.hpp"

namespace runner {
namespace {

using namespace frugal;
using isa_tag = isa::FRUGAL_ENGINE_ISA;
using device_type = device::cpu<isa_tag, counters_on>;

template <class Model>
class typed_engine final : public engine {
public:
    typed_engine(Model model, typename Model::state state, device::executor_ref executor)
        : model_(std::move(model)), state_(std::move(state)), device_(executor) {}

    const model::config& sizes() const override { return model_.sizes(); }
    std::string_view isa() const override { return isa_tag::name; }
    status forward(const model::token_batch& input, matrix_view<float> logits) override {
        return model_.forward(device_, scratch_, state_, input, logits);
    }
    std::size_t length(attention::sequence_id s) const override { return state_.length(s); }
    void clear(attention::sequence_id s) override { state_.clear(s); }
    status rollback(attention::sequence_id s, std::size_t n) override { return state_.rollback(s, n); }
    std::uint64_t counted(counter which) const override { return device_.counters().read(which); }

private:
    Model model_;
    typename Model::state state_;
    device_type device_;
    workspace scratch_;
};

template <class Spec, class Convention, class Source>
result<std::unique_ptr<engine>> make(const Source& source, const model::config& sizes, device::executor_ref executor,
                                     const engine_options& options) {
    using model_type = model::transformer<Spec, Convention, policies<device_type>>;
    const model::load_options load{options.qsa_ratio, options.check_tensors};
    FRUGAL_TRY_ASSIGN(auto weights, (model::read_weights<Spec, typename model_type::formats>(source, sizes, load)));
    FRUGAL_TRY_ASSIGN(auto model, model_type::create(sizes, std::move(weights)));
    FRUGAL_TRY_ASSIGN(auto state, model.make_state({options.sequences, options.max_tokens, options.checkpoints}));
    return std::unique_ptr<engine>(std::make_unique<typed_engine<model_type>>(std::move(model), std::move(state), executor));
}

template <class Convention, class Source>
result<std::unique_ptr<engine>> make_any(const Source& source, const model::config& sizes, device::executor_ref executor,
                                         const engine_options& options) {
    if (sizes.architecture == model::qwen35::name) return make<model::qwen35, Convention>(source, sizes, executor, options);
    if (sizes.architecture == model::qwen35moe::name) return make<model::qwen35moe, Convention>(source, sizes, executor, options);
    return make<model::qwen4exp<>, Convention>(source, sizes, executor, options);
}

}  // namespace

template <>
result<std::unique_ptr<engine>> make_engine_for<isa_tag>(const model_file& file, device::executor_ref executor,
                                                         const engine_options& options) {
    if (file.gguf) return make_any<model::convention::gguf>(*file.gguf, file.sizes, executor, options);
    return make_any<model::convention::hugging_face>(*file.checkpoint, file.sizes, executor, options);
}

}  // namespace runner

// Every architecture in both conventions for the instruction set FRUGAL_MODELS_ISA. Built with the project's plain flags: only
// the kernels, which are linked in, are compiled for the instruction set.
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/io/mapped_file.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/hugging_face_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "typed_model.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

namespace {

using isa_type = isa::FRUGAL_MODELS_ISA;
using device_type = device::packed_cpu<isa_type, counters_on, quant::all, device::q8_activations>;
using attention::sequence_id;

template <class Model>
class typed_model final : public compiled_model {
public:
    typed_model(std::unique_ptr<weight_files> files, std::unique_ptr<device_type> dev, Model model, typename Model::state state,
                typename Model::pass_type pass)
        : files_(std::move(files)),
          device_(std::move(dev)),
          model_(std::move(model)),
          state_(std::move(state)),
          pass_(std::move(pass)),
          sizes_{model_.sizes().architecture,   model_.sizes().vocabulary,
                 model_.sizes().hidden,         model_.sizes().layers.size(),
                 model_.sizes().context_length, {model_.sizes().eos.begin(), model_.sizes().eos.end()}} {}

    [[nodiscard]] status pack(const compiled_options& options) {
        return model_.pack(pass_, [&](std::uint64_t done, std::uint64_t total) {
            if (options.progress) options.progress(done, total);
        });
    }

    const compiled_sizes& sizes() const noexcept override { return sizes_; }
    std::string_view isa() const noexcept override { return isa_type::name; }
    status forward(const token_batch& input, matrix_view<float> logits) override {
        return model_.forward(pass_, state_, input, logits);
    }
    std::size_t length(sequence_id s) const override { return state_.length(s); }
    void clear(sequence_id s) override { state_.clear(s); }
    status rollback(sequence_id s, std::size_t n) override { return state_.rollback(s, n); }
    status copy(sequence_id from, sequence_id to) override { return state_.copy(from, to); }
    status begin_draft(sequence_id s) override { return state_.begin_draft(s); }
    status accept(sequence_id s, std::size_t n) override { return state_.accept(s, n); }
    result<std::vector<std::byte>> save_sequence(sequence_id s) const override {
        FRUGAL_TRY(state_.check(s));
        byte_writer out;
        state_.save(s, out);
        return std::move(out).take();
    }
    status load_sequence(sequence_id s, std::span<const std::byte> saved) override {
        byte_reader in(saved);
        return state_.load(s, in);
    }
    std::uint64_t counted(counter which) const noexcept override {
        // What the store packs and multiplies the device counts too.
        const bool both =
            which == counter::images_packed || which == counter::image_bytes_uploaded || which == counter::image_products;
        return pass_.store().counted(which) + (both ? 0 : std::as_const(*device_).counters().read(which));
    }
    std::size_t image_bytes() const noexcept override { return pass_.store().bytes(); }

private:
    std::unique_ptr<weight_files> files_;
    std::unique_ptr<device_type> device_;
    Model model_;
    typename Model::state state_;
    typename Model::pass_type pass_;
    compiled_sizes sizes_;
};

template <class Spec, class Convention, class Source>
result<std::unique_ptr<compiled_model>> make(std::unique_ptr<weight_files> files, const Source& source, const config& sizes,
                                             const compiled_options& options, device::executor_ref threads) {
    using model_type = transformer<Spec, Convention, policies<device_type>>;
    auto dev = std::make_unique<device_type>(threads);
    const load_options load{options.qsa_ratio, options.check_tensors};
    FRUGAL_TRY_ASSIGN(auto weights, (read_weights<Spec, typename model_type::formats>(source, sizes, load)));
    FRUGAL_TRY_ASSIGN(auto model, model_type::create(sizes, std::move(weights)));
    FRUGAL_TRY_ASSIGN(auto state, model.make_state(options.state));
    const auto pages = std::make_shared<io::page_return>();
    weight_store_options images;
    images.byte_budget = options.byte_budget;
    images.expert_byte_budget = options.expert_byte_budget;
    images.source_unneeded = [pages](std::span<const std::byte> part) { (*pages)(part); };
    FRUGAL_TRY_ASSIGN(auto pass, model.make_pass(*dev, images));
    auto out = std::make_unique<typed_model<model_type>>(std::move(files), std::move(dev), std::move(model), std::move(state),
                                                         std::move(pass));
    FRUGAL_TRY(out->pack(options));
    pages->finish();
    return std::unique_ptr<compiled_model>(std::move(out));
}

template <class Convention, class Source>
result<std::unique_ptr<compiled_model>> make_any(std::unique_ptr<weight_files> files, const Source& source, const config& sizes,
                                                 const compiled_options& options, device::executor_ref threads) {
    if (sizes.architecture == qwen35::name) return make<qwen35, Convention>(std::move(files), source, sizes, options, threads);
    if (sizes.architecture == qwen35moe::name)
        return make<qwen35moe, Convention>(std::move(files), source, sizes, options, threads);
    return make<qwen4exp<>, Convention>(std::move(files), source, sizes, options, threads);
}

}  // namespace

template <>
result<std::unique_ptr<compiled_model>> make_packed_model<isa_type>(std::unique_ptr<weight_files> files, const config& sizes,
                                                                    const compiled_options& options,
                                                                    device::executor_ref threads) {
    if (const auto* gguf = std::get_if<io::gguf_file>(files.get()))
        return make_any<convention::gguf>(std::move(files), *gguf, sizes, options, threads);
    const auto& checkpoint = std::get<io::safetensors_directory>(*files);
    return make_any<convention::hugging_face>(std::move(files), checkpoint, sizes, options, threads);
}

}  // namespace model

FRUGAL_NAMESPACE_END

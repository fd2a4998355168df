#pragma once
/// An engine over one instantiation of the model; what is compiled once for each instruction set, device and policy.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "engine.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "frugal/policies.hpp"

namespace runner {

template <class Model>
class typed_engine final : public engine {
public:
    using device_type = typename Model::device_type;

    typed_engine(Model model, typename Model::state state, typename Model::pass_type pass, std::unique_ptr<device_type> device)
        : model_(std::move(model)), state_(std::move(state)), device_(std::move(device)), pass_(std::move(pass)) {}

    /// Packs all weight images, if the device keeps any.
    [[nodiscard]] frugal::status pack(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
        if constexpr (Model::has_images)
            return model_.pack(pass_, [&](std::uint64_t done, std::uint64_t total) {
                if (progress) progress(done, total);
            });
        return {};
    }

    const frugal::model::config& sizes() const override { return model_.sizes(); }
    std::string_view isa() const override { return device_type::isa::name; }
    std::string_view device() const override { return device_type::name; }
    frugal::status forward(const frugal::model::token_batch& input, frugal::matrix_view<float> logits) override {
        return model_.forward(pass_, state_, input, logits);
    }
    std::size_t length(frugal::attention::sequence_id s) const override { return state_.length(s); }
    void clear(frugal::attention::sequence_id s) override { state_.clear(s); }
    frugal::status rollback(frugal::attention::sequence_id s, std::size_t n) override { return state_.rollback(s, n); }
    std::uint64_t counted(frugal::counter which) const override {
        using frugal::counter;
        const std::uint64_t own = std::as_const(*device_).counters().read(which);
        if constexpr (Model::has_images) {
            // What the store packs and multiplies the device may have counted too.
            const bool both =
                which == counter::images_packed || which == counter::image_bytes_uploaded || which == counter::image_products;
            return pass_.store().counted(which) + (both ? 0 : own);
        }
        return own;
    }
    std::size_t image_bytes() const override {
        if constexpr (Model::has_images) return pass_.store().bytes();
        return 0;
    }
    std::optional<frugal::error> last_failure() const override {
        if constexpr (Model::has_images) return pass_.store().last_failure();
        return std::nullopt;
    }

private:
    Model model_;
    typename Model::state state_;
    std::unique_ptr<device_type> device_;
    typename Model::pass_type pass_;
};

/// An engine for `Spec` with weights of `Convention`. Option: further policies.
template <class Spec, class Convention, class Device, class... Option, class Source>
frugal::result<std::unique_ptr<engine>> make_typed_engine(const Source& source, const frugal::model::config& sizes,
                                                          std::unique_ptr<Device> device, const engine_options& options) {
    using model_type = frugal::model::transformer<Spec, Convention, frugal::policies<Device, Option...>>;
    const frugal::model::load_options load{options.qsa_ratio, options.check_tensors};
    FRUGAL_TRY_ASSIGN(auto weights, (frugal::model::read_weights<Spec, typename model_type::formats>(source, sizes, load)));
    FRUGAL_TRY_ASSIGN(auto model, model_type::create(sizes, std::move(weights)));
    FRUGAL_TRY_ASSIGN(auto state, model.make_state({options.sequences, options.max_tokens, options.checkpoints}));
    FRUGAL_TRY_ASSIGN(auto pass, model.make_pass(*device, options.images));
    auto out = std::make_unique<typed_engine<model_type>>(std::move(model), std::move(state), std::move(pass), std::move(device));
    FRUGAL_TRY(out->pack(options.progress));
    return std::unique_ptr<engine>(std::move(out));
}

/// The same for whichever architecture the file has.
template <class Convention, class Device, class... Option, class Source>
frugal::result<std::unique_ptr<engine>> make_any_engine(const Source& source, const frugal::model::config& sizes,
                                                        std::unique_ptr<Device> device, const engine_options& options) {
    using namespace frugal::model;
    if (sizes.architecture == qwen35::name)
        return make_typed_engine<qwen35, Convention, Device, Option...>(source, sizes, std::move(device), options);
    if (sizes.architecture == qwen35moe::name)
        return make_typed_engine<qwen35moe, Convention, Device, Option...>(source, sizes, std::move(device), options);
    return make_typed_engine<qwen4exp<>, Convention, Device, Option...>(source, sizes, std::move(device), options);
}

}  // namespace runner

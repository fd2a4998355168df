#pragma once
// Our side of the whole models: any architecture, in the most able instruction set of the machine.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "generator.hpp"

namespace bench {

/// One model of ours and some sequences of it.
class own_run {
public:
    own_run() = default;
    own_run(const own_run&) = delete;
    own_run& operator=(const own_run&) = delete;
    virtual ~own_run() = default;
    /// Appends equally many tokens to each of the first sequences, those of one after those of another; logits() are those of
    /// each one's last token.
    [[nodiscard]] virtual fg::status forward(std::span<const std::int32_t> tokens, std::size_t sequences) = 0;
    /// Empties all sequences.
    virtual void clear() = 0;
    /// Makes the first sequence, which holds a few tokens, one of `depth` tokens.
    [[nodiscard]] virtual fg::status deepen(std::size_t depth) = 0;
    virtual void use_threads(std::size_t count) = 0;
    [[nodiscard]] std::span<const float> logits(std::size_t sequence, std::size_t vocabulary) const noexcept {
        return std::span(logits_).subspan(sequence * vocabulary, vocabulary);
    }

protected:
    std::vector<float> logits_;
};

template <class Spec, class Isa>
class typed_run final : public own_run {
public:
    using formats = fg::quant::list<fg::quant::f32, fg::quant::f16, fg::quant::bf16, fg::quant::q4_k, fg::quant::q6_k,
                                    fg::quant::q5_0, fg::quant::q8_0>;
    using device_type = fg::device::packed_cpu<Isa, fg::counters_off, formats, fg::device::q8_activations>;
    using policies = fg::policies<device_type, formats>;
    using model_type = fg::model::transformer<Spec, fg::model::convention::gguf, policies>;

    /// The second of a specification's two kinds of layers.
    template <class Recurrent, class Attention>
    static fg::type_tag<Attention> second(fg::type_list<Recurrent, Attention>);
    using parts = fg::model::parts_of<Spec, fg::model::convention::gguf, policies>;
    using attention_variant = typename decltype(second(typename parts::kinds{}))::type;
    static constexpr bool sparse = requires {
        typename attention_variant::shared_inputs;
    };

    [[nodiscard]] static fg::result<std::unique_ptr<own_run>> open(const fg::io::gguf_file& file, std::size_t sequences,
                                                                   std::size_t context) {
        FRUGAL_TRY_ASSIGN(const auto sizes, fg::model::read_config(file));
        FRUGAL_TRY_ASSIGN(auto weights, (fg::model::read_weights<Spec, formats>(file, sizes)));
        FRUGAL_TRY_ASSIGN(auto model, model_type::create(sizes, std::move(weights)));
        FRUGAL_TRY_ASSIGN(auto state, model.make_state({.sequences = sequences, .max_tokens = context}));
        std::unique_ptr<typed_run> run(new typed_run(std::move(model), std::move(state)));
        FRUGAL_TRY_ASSIGN(auto pass,
                          run->model_.make_pass(*run->device_, {.on_failure = fg::reuse::on_device_failure::return_error}));
        run->pass_.emplace(std::move(pass));
        return std::unique_ptr<own_run>(std::move(run));
    }

    fg::status forward(std::span<const std::int32_t> tokens, std::size_t sequences) override {
        const std::size_t each = tokens.size() / sequences, vocabulary = model_.sizes().vocabulary;
        std::vector<fg::attention::segment> segments;
        std::vector<std::size_t> last;
        for (std::size_t i = 0; i < sequences; ++i) {
            segments.push_back({fg::attention::sequence_id(i), i * each, each});
            last.push_back((i + 1) * each - 1);
        }
        logits_.resize(sequences * vocabulary);
        return model_.forward(*pass_, state_, {tokens, segments, {}, last},
                              {logits_.data(), sequences, vocabulary});
    }
    void clear() override {
        for (std::size_t i = 0; i < state_.sequences(); ++i) state_.clear(fg::attention::sequence_id(i));
    }
    void use_threads(std::size_t count) override { device_.emplace(executor(count)); }
    fg::status deepen(std::size_t depth) override {
        constexpr fg::attention::sequence_id sequence{0};
        const fg::model::config& sizes = model_.sizes();
        const std::size_t begin = state_.length(sequence), more = depth - begin;
        const std::vector<float> rows = normal(65521, 7);
        const auto row = [&](std::size_t token, std::size_t width) { return rows.data() + token * 31 % (rows.size() - width); };
        FRUGAL_TRY(state_.reserve(sequence, more));
        for (auto& cache : state_.template parts<typename attention_variant::state>()) {
            const std::size_t width = sizes.kv_heads * sizes.head_dim;
            for (std::size_t t = begin; t < depth; ++t) cache.write(sequence, t, row(2 * t, width), row(2 * t + 1, width));
            if constexpr (sparse) {
                for (std::size_t t = begin; t < depth; ++t)
                    cache.write_raw_key(sequence, fg::reuse::token_rank(t), row(t, sizes.index_dim));
                for (std::size_t b = cache.ratio().complete_blocks(begin); b < cache.ratio().complete_blocks(depth); ++b)
                    cache.write_block_key(sequence, fg::reuse::block_index(b), row(b, sizes.index_dim));
            }
            cache.commit(sequence, more);
        }
        if constexpr (sparse) {
            std::vector<fg::attention::rope_position> positions(more);
            for (std::size_t i = 0; i < more; ++i) {
                const auto position = static_cast<std::int32_t>(begin + i);
                positions[i] = {position, position, position};
            }
            const fg::attention::segment all{sequence, 0, more};
            fg::counters_off none;
            for (auto& layouts : state_.template parts<typename attention_variant::shared_inputs>())
                FRUGAL_TRY(layouts.append(fg::attention::batch{{&all, 1}, positions}, none));
        }
        state_.advance(sequence, more);
        return {};
    }

private:
    typed_run(model_type model, typename model_type::state state) : model_(std::move(model)), state_(std::move(state)) {}

    model_type model_;
    typename model_type::state state_;
    std::optional<device_type> device_{std::in_place};
    std::optional<typename model_type::pass_type> pass_;
};

/// Sequences of `context` tokens each, at most. The file must outlive them. Errors: those of loading a model.
inline fg::result<std::unique_ptr<own_run>> open_own(const model_shape& shape, const fg::io::gguf_file& file,
                                                     std::size_t sequences, std::size_t context) {
    std::unique_ptr<own_run> out;
    FRUGAL_TRY(fg::device::dispatch<fg::isa::all>([&]<class Isa>(fg::type_tag<Isa>) -> fg::status {
        if (shape.architecture == fg::model::qwen35::name) {
            FRUGAL_TRY_ASSIGN(out, (typed_run<fg::model::qwen35, Isa>::open(file, sequences, context)));
        } else {
            FRUGAL_TRY_ASSIGN(out, (typed_run<fg::model::qwen4exp<>, Isa>::open(file, sequences, context)));
        }
        return {};
    }));
    return out;
}

}  // namespace bench

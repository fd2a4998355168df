// The golden checkpoints rewritten as GGUF files, as converters do it, must give the golden logits by the other path: tiled value
// heads, gammas with their 1 added, -exp(A_log), separate expert stacks. This also covers qwen35moe, of which no small file exists.
#include <cmath>

#include "../io/gguf_builder.hpp"
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

struct tensor {
    std::string name;
    std::vector<std::uint64_t> dims;  // GGUF order
    std::vector<float> values;
};

class converter {
public:
    explicit converter(const golden_model& source) : source_(source), c_(source.sizes) {}

    /// The whole file. `fuse`: gate and up in one stack, as a converter option writes it.
    std::string convert(bool fuse) {
        const bool moe = c_.architecture == "qwen35moe";
        put("token_embd.weight", "model.embed_tokens.weight");
        put("output.weight", "lm_head.weight");
        put("output_norm.weight", "model.norm.weight", &converter::plus_one);
        for (std::size_t i = 0; i < c_.layers.size(); ++i) {
            at_ = concat("blk.", i, ".");
            from_ = concat("model.layers.", i, ".");
            put("attn_norm.weight", "input_layernorm.weight", &converter::plus_one);
            put("post_attention_norm.weight", "post_attention_layernorm.weight", &converter::plus_one);
            if (c_.layers[i] == model::layer_kind::gdn) {
                put("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", &converter::tile_after_qk);
                put("attn_gate.weight", "linear_attn.in_proj_z.weight", &converter::tile_values);
                put("ssm_beta.weight", "linear_attn.in_proj_b.weight", &converter::tile_heads);
                put("ssm_alpha.weight", "linear_attn.in_proj_a.weight", &converter::tile_heads);
                put("ssm_out.weight", "linear_attn.out_proj.weight", &converter::tile_columns);
                put("ssm_conv1d.weight", "linear_attn.conv1d.weight", &converter::tile_conv);
                put("ssm_a", "linear_attn.A_log", &converter::decay);
                put("ssm_dt.bias", "linear_attn.dt_bias", &converter::tile_heads);
                put("ssm_norm.weight", "linear_attn.norm.weight");
            } else {
                for (const auto& [to, name] : {std::pair("attn_q", "q_proj"), std::pair("attn_k", "k_proj"),
                                               std::pair("attn_v", "v_proj"), std::pair("attn_output", "o_proj")})
                    put(concat(to, ".weight"), concat("self_attn.", name, ".weight"));
                put("attn_q_norm.weight", "self_attn.q_norm.weight", &converter::plus_one);
                put("attn_k_norm.weight", "self_attn.k_norm.weight", &converter::plus_one);
            }
            if (!moe) {
                for (const char* name : {"gate", "up", "down"})
                    put(concat("ffn_", name, ".weight"), concat("mlp.", name, "_proj.weight"));
                continue;
            }
            put("ffn_gate_inp.weight", "mlp.gate.weight");
            put("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight");
            for (const char* name : {"gate", "up", "down"})
                put(concat("ffn_", name, "_shexp.weight"), concat("mlp.shared_expert.", name, "_proj.weight"));
            put("ffn_down_exps.weight", "mlp.experts.down_proj");
            if (fuse) {
                put("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj");
            } else {
                put("ffn_gate_exps.weight", "mlp.experts.gate_up_proj", &converter::first_half);
                put("ffn_up_exps.weight", "mlp.experts.gate_up_proj", &converter::second_half);
            }
        }
        return write();
    }

private:
    using change = void (converter::*)(tensor&) const;

    void put(const std::string& to, const std::string& from, change apply = nullptr) {
        const bool global = at_.empty();
        const std::string name = global ? from : from_ + from;
        tensor t{global ? to : at_ + to, {}, source_.data.f32(name)};
        const auto shape = source_.data.shape(name);
        t.dims.assign(shape.rbegin(), shape.rend());
        if (apply != nullptr) (this->*apply)(t);
        tensors_.push_back(std::move(t));
    }

    void plus_one(tensor& t) const {
        for (float& w : t.values) w += 1.0f;
    }
    void decay(tensor& t) const {
        tile_heads(t);
        for (float& w : t.values) w = -std::exp(w);
    }
    /// Moves value head k * per + v to v * key heads + k; a head is `size` values, the first one starts at `begin`.
    void tile(float* begin, std::size_t size) const {
        const std::size_t keys = c_.key_heads, per = c_.value_heads / c_.key_heads;
        const std::vector<float> before(begin, begin + c_.value_heads * size);
        for (std::size_t k = 0; k < keys; ++k)
            for (std::size_t v = 0; v < per; ++v)
                std::copy_n(before.begin() + static_cast<std::ptrdiff_t>((k * per + v) * size), size, begin + (v * keys + k) * size);
    }
    [[nodiscard]] std::size_t queries_and_keys() const { return 2 * c_.key_heads * c_.key_dim; }
    void tile_heads(tensor& t) const { tile(t.values.data(), t.values.size() / c_.value_heads); }
    void tile_values(tensor& t) const { tile(t.values.data(), c_.value_dim * c_.hidden); }
    void tile_after_qk(tensor& t) const { tile(t.values.data() + queries_and_keys() * c_.hidden, c_.value_dim * c_.hidden); }
    void tile_conv(tensor& t) const {
        t.dims = {c_.conv_kernel, t.values.size() / c_.conv_kernel};
        tile(t.values.data() + queries_and_keys() * c_.conv_kernel, c_.value_dim * c_.conv_kernel);
    }
    void tile_columns(tensor& t) const {
        for (std::size_t r = 0; r < c_.hidden; ++r) tile(t.values.data() + r * c_.value_heads * c_.value_dim, c_.value_dim);
    }
    void half(tensor& t, std::size_t which) const {
        const std::size_t part = c_.expert_intermediate * c_.hidden;
        std::vector<float> out;
        for (std::size_t e = 0; e < c_.experts; ++e) {
            const auto begin = t.values.begin() + static_cast<std::ptrdiff_t>((2 * e + which) * part);
            out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(part));
        }
        t.values = std::move(out);
        t.dims[1] = c_.expert_intermediate;
    }
    void first_half(tensor& t) const { half(t, 0); }
    void second_half(tensor& t) const { half(t, 1); }

    [[nodiscard]] std::string write() const {
        const bool moe = c_.architecture == "qwen35moe";
        gguf_builder out;
        const auto size = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
        std::uint64_t entries = 0;
        gguf_builder keys;
        const auto key = [&](const char* name, std::size_t value) {
            keys.value(concat(c_.architecture, ".", name), 4, size(value));
            ++entries;
        };
        keys.string_value("general.architecture", c_.architecture);
        ++entries;
        key("block_count", c_.layers.size() + 1);  // the last is a prediction layer, which is not there and not asked for
        key("nextn_predict_layers", 1);
        key("context_length", c_.context_length);
        key("embedding_length", c_.hidden);
        key("attention.head_count", c_.heads);
        key("attention.head_count_kv", c_.kv_heads);
        key("attention.key_length", c_.head_dim);
        key("attention.value_length", c_.head_dim);
        key("rope.dimension_count", c_.rotary_dim);
        key("ssm.conv_kernel", c_.conv_kernel);
        key("ssm.state_size", c_.key_dim);
        key("ssm.group_count", c_.key_heads);
        key("ssm.time_step_rank", c_.value_heads);
        key("ssm.inner_size", c_.value_heads * c_.value_dim);
        key("full_attention_interval", 4);
        if (moe) {
            key("expert_count", c_.experts);
            key("expert_used_count", c_.experts_used);
            key("expert_feed_forward_length", c_.expert_intermediate);
            key("expert_shared_feed_forward_length", c_.shared_intermediate);
        } else {
            key("feed_forward_length", c_.intermediate);
        }
        keys.value(concat(c_.architecture, ".attention.layer_norm_rms_epsilon"), 6, c_.rms_epsilon);
        keys.value(concat(c_.architecture, ".rope.freq_base"), 6, c_.rope_theta);
        keys.array<std::int32_t>(concat(c_.architecture, ".rope.dimension_sections"), 5,
                                 {c_.rope_sections[0], c_.rope_sections[1], c_.rope_sections[2], 0});
        entries += 3;
        out.header(tensors_.size(), entries);
        out.text += keys.text;
        std::uint64_t offset = 0;
        for (const tensor& t : tensors_) {
            out.tensor(t.name, t.dims, 0, offset);
            offset += (t.values.size() * sizeof(float) + 31) / 32 * 32;
        }
        out.pad();
        for (const tensor& t : tensors_) {
            out.text.append(reinterpret_cast<const char*>(t.values.data()), t.values.size() * sizeof(float));
            out.pad();
        }
        return out.text;
    }

    const golden_model& source_;
    const model::config& c_;
    std::string at_, from_;
    std::vector<tensor> tensors_;
};

template <class Spec>
void check(const std::string& name, bool fuse) {
    const golden_model golden(name);
    const std::string bytes = converter(golden).convert(fuse);
    const gguf_model file(must(io::gguf_file::parse(std::as_bytes(std::span(bytes)), name + ".gguf")));
    CHECK(file.sizes.layers == golden.sizes.layers);
    for_each_isa([&]<class Isa>(type_tag<Isa>) {
        auto m = file.run<Spec, Isa>({.sequences = 1, .max_tokens = 64});
        check_close(m->run(golden.tokens()), golden.data.f32("io.logits"), golden.data.tol("io.logits"), "logits");
    });
}

}  // namespace

TEST_CASE("C08 C11 a checkpoint as GGUF gives the same logits: Qwen3.5 dense") { check<model::qwen35>("models/qwen3_5_dense", false); }
TEST_CASE("C08 C11 a checkpoint as GGUF gives the same logits: Qwen3.5 mixture of experts") {
    check<model::qwen35moe>("models/qwen3_5_moe", false);
    check<model::qwen35moe>("models/qwen3_5_moe", true);
}

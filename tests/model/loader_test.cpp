// Loading: what a file may get wrong, and what the error says.
#include <cstring>
#include <set>

#include "../io/gguf_editor.hpp"
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

using model_type = model::transformer<model::qwen4exp<4>, model::convention::gguf, policies<device::cpu<isa::baseline>>>;

/// Where `text` lies in `bytes`.
std::size_t find(std::span<const std::byte> bytes, std::string_view text) {
    const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const std::size_t at = all.find(text);
    REQUIRE(at != std::string_view::npos);
    return at;
}

template <class T>
void put(std::span<std::byte> bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
}

io::gguf_file parse(const std::vector<std::byte>& bytes) { return must(io::gguf_file::parse(bytes, "changed.gguf")); }

void check_error(const error& e, errc code, std::initializer_list<const char*> parts) {
    CHECK(e.code == code);
    for (const char* part : parts) CHECK_MESSAGE(e.message.find(part) != std::string::npos, e.message, " should say ", part);
}

gguf_editor edit(const std::string& name) {
    static const gguf_editor qwen35(parse(embedded_file("tiny-qwen35"))), qwen4exp(parse(embedded_file("tiny-qwen4exp")));
    return name == "tiny-qwen35" ? qwen35 : qwen4exp;
}

/// What the loader says of an edited file: nothing where it loads.
template <class Spec>
error load_error(const std::string& bytes) {
    const auto file = io::gguf_file::parse(std::as_bytes(std::span(bytes)), "edited.gguf");
    if (!file) return file.error();
    const auto sizes = model::read_config(*file);
    if (!sizes) return sizes.error();
    const auto weights = model::read_weights<Spec, quant::all>(*file, *sizes);
    return weights ? error{errc::invalid_argument, ""} : weights.error();
}
error load_error(const gguf_editor& edited) { return load_error<model::qwen35>(edited.whole()); }

result<model::config> config_of(const gguf_editor& edited) {
    const std::string bytes = edited.whole();
    return model::read_config(must(io::gguf_file::parse(std::as_bytes(std::span(bytes)), "edited.gguf")));
}

}  // namespace

TEST_CASE("a file whose QSA is silently off is refused, and runs as asked") {
    auto bytes = embedded_file("tiny-qwen4exp");
    const std::string_view key = "qwen4exp.attention.compress_ratios";
    // After the key: value type (array), element type, count (u64), elements of 4 bytes.
    const std::size_t elements = find(bytes, key) + key.size() + 4 + 4 + 8;
    for (std::size_t i = 0; i < 8; ++i) put<std::uint32_t>(bytes, elements + 4 * i, 0);
    const auto file = parse(bytes);
    check_error(model::read_config(file).error(), errc::unsupported, {"indexer", "--qsa-ratio"});

    const auto asked = must(model::read_config(file, {.qsa_ratio = 4}));
    CHECK(asked.qsa_ratios == std::vector<std::size_t>{0, 0, 0, 4, 0, 0, 0, 4});
    const auto other = must(model::read_config(file, {.qsa_ratio = 8}));
    check_error((model::read_weights<model::qwen4exp<4>, model_type::formats>(file, other)).error(), errc::unsupported, {"ratio 8", "ratio 4"});

    // With the ratio given the model is the undamaged one; with 0 it is dense, which differs once the budget of 64 tokens cuts.
    const gguf_model whole(FRUGAL_EXAMPLE_MODELS "/tiny-qwen4exp-Q4_K_M.gguf");
    const gguf_model mended(parse(bytes), {.qsa_ratio = 4});
    const gguf_model dense(parse(bytes), {.qsa_ratio = 0});
    std::vector<std::int32_t> tokens(120);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 37 % 2000);
    const auto logits = [&](const gguf_model& m) { return m.run<model::qwen4exp<4>, isa::baseline>({.max_tokens = 128})->run(tokens); };
    const auto want = logits(whole), got = logits(mended), without = logits(dense);
    CHECK(same_bits(got, want));
    const auto below_budget = [&](const std::vector<float>& all) { return std::vector<float>(all.begin(), all.begin() + 64 * 2048); };
    CHECK(same_bits(below_budget(without), below_budget(want)));
    CHECK_FALSE(same_bits(without, want));
}

TEST_CASE("a missing or misshapen tensor is named") {
    const auto load = [](const std::vector<std::byte>& bytes) {
        const auto file = parse(bytes);
        const auto sizes = must(model::read_config(file));
        auto weights = model::read_weights<model::qwen4exp<4>, model_type::formats>(file, sizes);
        REQUIRE_FALSE(weights.has_value());
        return weights.error();
    };
    SUBCASE("missing") {
        auto bytes = embedded_file("tiny-qwen4exp");
        bytes[find(bytes, "blk.3.attn_k.weight") + 4] = std::byte{'0'};
        check_error(load(bytes), errc::not_found, {"blk.3.attn_k.weight", "missing"});
    }
    SUBCASE("of another shape") {
        auto bytes = embedded_file("tiny-qwen4exp");
        const std::string_view name = "blk.3.attn_k.weight";
        put<std::uint64_t>(bytes, find(bytes, name) + name.size() + 4 + 8, 64);  // n_dims, then the dims; 128 rows before
        check_error(load(bytes), errc::shape_mismatch, {"blk.3.attn_k.weight", "{256, 64}", "{256, 128} is expected"});
    }
    SUBCASE("of a type that is not compiled") {
        auto bytes = embedded_file("tiny-qwen4exp");
        const auto file = parse(bytes);
        const auto sizes = must(model::read_config(file));
        const auto weights = model::read_weights<model::qwen4exp<4>, quant::list<quant::f32, quant::q4_k>>(file, sizes);
        REQUIRE_FALSE(weights.has_value());
        check_error(weights.error(), errc::unsupported_format, {"token_embd.weight", "f32 q4_k"});
    }
}

TEST_CASE("C46 NaN weights are refused where they lie") {
    auto bytes = embedded_file("tiny-qwen35");
    std::size_t at = 0;
    {
        const auto file = parse(bytes);
        const auto norm = must(file.bytes(*file.find("blk.2.attn_norm.weight")));
        at = static_cast<std::size_t>(norm.data() - bytes.data()) + 4 * 5;
    }
    using dense = model::transformer<model::qwen35, model::convention::gguf, policies<device::cpu<isa::baseline>>>;
    const auto load = [&](bool check) {
        const auto file = parse(bytes);
        const auto sizes = must(model::read_config(file));
        return model::read_weights<model::qwen35, dense::formats>(file, sizes, {.qsa_ratio = {}, .check_tensors = check});
    };
    SUBCASE("in a norm") {
        put<std::uint32_t>(bytes, at, 0x7FC00000);
        auto weights = load(false);
        REQUIRE_FALSE(weights.has_value());
        check_error(weights.error(), errc::not_finite, {"blk.2.attn_norm.weight", "5"});
    }
    SUBCASE("in a matrix, when asked to look") {
        const auto file = parse(bytes);
        const auto matrix = must(file.bytes(*file.find("blk.0.ffn_gate.weight")));
        put<std::uint16_t>(bytes, static_cast<std::size_t>(matrix.data() - bytes.data()), 0x7E00);  // the first block's scale
        CHECK(load(false).has_value());
        auto weights = load(true);
        REQUIRE_FALSE(weights.has_value());
        check_error(weights.error(), errc::not_finite, {"blk.0.ffn_gate.weight", "row 0"});
    }
}

TEST_CASE("sizes that do not hang together are refused with their name") {
    const auto changed = [](const char* key, std::uint32_t value) {
        auto bytes = embedded_file("tiny-qwen35");
        const std::string_view name = key;
        put<std::uint32_t>(bytes, find(bytes, name) + name.size() + 4, value);
        return bytes;
    };
    const auto fails = [](const std::vector<std::byte>& bytes) {
        const auto file = parse(bytes);
        const auto sizes = model::read_config(file);
        if (!sizes) return sizes.error();
        const auto weights = model::read_weights<model::qwen35, quant::all>(file, *sizes);
        REQUIRE_FALSE(weights.has_value());
        return weights.error();
    };
    for (const char* key : {"qwen35.block_count", "qwen35.embedding_length", "qwen35.feed_forward_length", "qwen35.attention.head_count",
                            "qwen35.attention.head_count_kv", "qwen35.attention.key_length", "qwen35.rope.dimension_count",
                            "qwen35.ssm.conv_kernel", "qwen35.ssm.state_size", "qwen35.ssm.group_count", "qwen35.ssm.time_step_rank",
                            "qwen35.ssm.inner_size", "qwen35.context_length"})
        for (const std::uint32_t value : {0u, 0xFFFFFFFFu}) {
            CAPTURE(key);
            CAPTURE(value);
            if (std::string_view(key) == "qwen35.ssm.conv_kernel" && value != 0) continue;  // covered by the shape of its weights below
            const error e = fails(changed(key, value));
            CHECK_FALSE(e.message.empty());
        }
    CHECK_FALSE(fails(changed("qwen35.ssm.conv_kernel", 5)).message.empty());
    CHECK_FALSE(fails(changed("qwen35.attention.head_count", 3)).message.empty());
}

TEST_CASE("an architecture that is not ours is named") {
    auto bytes = embedded_file("tiny-qwen35");
    const std::string_view key = "general.architecture";
    bytes[find(bytes, key) + key.size() + 4 + 8 + 5] = std::byte{'7'};  // qwen35 -> qwen37
    check_error(model::read_config(parse(bytes)).error(), errc::unsupported, {"qwen37", "qwen4exp"});
}

TEST_CASE("config.json: wrong types and missing keys are named") {
    const golden_model golden("models/qwen4_exp");
    const auto whole = nlohmann::json::parse(golden.data.params().at("config").text());
    const auto fails = [&](const nlohmann::json& changed) {
        auto sizes = model::read_config(changed.dump(), golden.file);
        if (!sizes) return sizes.error();
        auto weights = model::read_weights<model::qwen4exp<4>, quant::all>(golden.file, *sizes);
        REQUIRE_FALSE(weights.has_value());
        return weights.error();
    };
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                            "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_conv_kernel_dim",
                            "num_experts", "num_experts_per_tok", "moe_intermediate_size", "hc_count", "hc_lowrank", "indexer_n_heads",
                            "indexer_head_dim", "indexer_budget", "indexer_compress_ratio", "ngram_size", "heads_per_ngram",
                            "ple_embed_dim", "ngram_vocab_size_base", "rms_norm_eps", "model_type"}) {
        CAPTURE(key);
        auto missing = whole;
        missing.erase(key);
        CHECK(fails(missing).message.find(key) != std::string::npos);
        auto odd = whole;
        odd[key] = nlohmann::json::array({"x"});
        CHECK(fails(odd).message.find(key) != std::string::npos);
    }
    auto seed = whole;
    seed["seed"] = 99;
    check_error(fails(seed), errc::malformed_file, {"layer_multipliers"});
    CHECK(model::read_config("{", golden.file).error().code == errc::malformed_file);
    CHECK(model::read_config("[]", golden.file).error().code == errc::malformed_file);
}

TEST_CASE("N01: rotary scaling is read from every key that GGUF has for it, or refused by name") {
    const auto with = [](auto... change) {
        auto edited = edit("tiny-qwen35");
        (change(edited), ...);
        return config_of(edited);
    };
    const auto scaling = [&](auto... change) { return must(with(change...)).rope_scaling; };
    const auto refusal = [&](auto... change) {
        const auto got = with(change...);
        REQUIRE_FALSE(got.has_value());
        return got.error();
    };
    const auto type = [](const char* value) { return [=](gguf_editor& e) { e.set_text("qwen35.rope.scaling.type", value); }; };
    const auto f32 = [](const char* key, float value) {
        return [=](gguf_editor& e) { e.set_f32(concat("qwen35.rope.", key), value); };
    };
    const auto original = [](gguf_editor& e) { e.set_u32("qwen35.rope.scaling.original_context_length", 1024); };

    CHECK(scaling() == ops::rope_scaling{});
    CHECK(scaling(type("none"), f32("scaling.factor", 4)) == ops::rope_scaling{});
    const auto yarn = scaling(type("yarn"), f32("scaling.factor", 4), original);
    CHECK(yarn.kind == ops::rope_scaling_kind::yarn);
    CHECK(yarn.factor == 4);
    CHECK(yarn.original_context == 1024);
    CHECK(yarn.beta_fast == 32);
    CHECK(yarn.beta_slow == 1);
    CHECK(yarn.magnitude == doctest::Approx(1.138629).epsilon(1e-6));
    CHECK(scaling(type("yarn"), f32("scaling.factor", 4)).original_context == 4096);  // the model's own
    const auto betas = scaling(type("yarn"), f32("scaling.factor", 4), f32("scaling.yarn_beta_fast", 16),
                               f32("scaling.yarn_beta_slow", 2), f32("scaling.yarn_ext_factor", 1));
    CHECK(betas.beta_fast == 16);
    CHECK(betas.beta_slow == 2);
    CHECK(scaling(type("yarn"), f32("scaling.factor", 4), f32("scaling.yarn_attn_factor", 0.5f)).magnitude == 0.5);
    CHECK(scaling(type("linear"), f32("scaling.factor", 4), f32("scaling.attn_factor", 0.5f)).magnitude == 0.5);
    // A factor alone is linear, by its present name and its old one.
    for (const char* key : {"scaling.factor", "scale_linear"}) {
        const auto linear = scaling(f32(key, 2));
        CHECK(linear.kind == ops::rope_scaling_kind::linear);
        CHECK(linear.factor == 2);
        CHECK(linear.magnitude == 1);
    }
    for (const char* other : {"longrope", "dynamic", "llama3"})
        check_error(refusal(type(other), f32("scaling.factor", 4)), errc::unsupported, {"qwen35.rope.scaling", other});
    check_error(refusal(type("yarn"), f32("scaling.factor", 4), f32("scaling.yarn_ext_factor", 0.5f)), errc::unsupported,
                {"qwen35.rope.scaling.yarn_ext_factor"});
    check_error(refusal(type("yarn"), f32("scaling.factor", 4), f32("scaling.yarn_log_multiplier", 0.1f)), errc::unsupported,
                {"qwen35.rope.scaling.yarn_log_multiplier"});
    check_error(refusal(f32("scaling.alpha", 1000)), errc::unsupported, {"qwen35.rope.scaling.alpha"});
    check_error(refusal(type("yarn")), errc::not_found, {"qwen35.rope.scaling", "no factor"});
    check_error(refusal(type("linear"), f32("scaling.factor", -4)), errc::invalid_argument, {"qwen35.rope.scaling", "factor"});
    check_error(refusal(f32("new_thing", 1)), errc::unsupported, {"qwen35.rope.new_thing"});
}

TEST_CASE("every key of the architecture is read, harmless or refused with its name") {
    const auto refused = [](gguf_editor& edited, std::string_view key) {
        CAPTURE(std::string(key));
        const auto got = config_of(edited);
        REQUIRE_FALSE(got.has_value());
        CHECK_MESSAGE(got.error().message.find(key) != std::string::npos, got.error().message);
    };
    const auto accepted = [](const gguf_editor& edited) { must(config_of(edited)); };
    accepted(edit("tiny-qwen35"));
    for (const auto& fixed : model::detail::fixed_gguf_keys) {
        const std::string key = concat("qwen35.", fixed.key);
        auto edited = edit("tiny-qwen35");
        refused(edited.set_f32(key, 7), key);
        for (const double value : fixed.values) {
            accepted(edited.set_f32(key, static_cast<float>(value)));
            accepted(edited.set_u32(key, static_cast<std::uint32_t>(value)));
            accepted(edited.set_bool(key, value != 0));
        }
    }
    auto edited = edit("tiny-qwen35");
    SUBCASE("another arithmetic") {
        for (const char* key : {"attention.scale", "attention.key_length_swa", "rope.freq_base_swa", "rope.dimension_count_swa",
                                "attention.layer_norm_epsilon", "embedding_length_out", "expert_count", "expert_weights_norm",
                                "norm_top_k_prob", "ssm.v_head_reordered"}) {
            auto fresh = edited;
            refused(fresh.set_f32(concat("qwen35.", key), 0.25f), concat("qwen35.", key));
        }
        auto fresh = edited;
        refused(fresh.set_text("qwen35.hidden_activation", "gelu"), "qwen35.hidden_activation");
        fresh = edited;
        refused(fresh.set_text("qwen35.tensor_data_layout", "other"), "qwen35.tensor_data_layout");
        fresh = edited;
        refused(fresh.set_u32("qwen35.attention.value_length", 32), "value heads of 32");
        fresh = edited;
        refused(fresh.set_list<std::int32_t>("qwen35.rope.dimension_sections", 5, {3, 3, 1, 1}), "rope.dimension_sections");
        fresh = edited;
        refused(fresh.set_list<std::int32_t>("qwen35.mrope_sections", 5, {3, 2, 3}), "qwen35.mrope_sections");
        fresh = edited;
        refused(fresh.set_list<std::uint8_t>("qwen35.attention.sliding_window_pattern", 7, {0, 1}), "sliding_window_pattern");
    }
    SUBCASE("the same arithmetic, said once more") {
        edited.set_f32("qwen35.attention.scale", 0.125f).set_f32("qwen35.rope.freq_base_swa", 1e7f);
        edited.set_u32("qwen35.embedding_length_out", 256).set_bool("qwen35.ssm.v_head_reordered", true);
        edited.set_u32("qwen35.expert_count", 0).set_text("qwen35.hidden_activation", "silu");
        accepted(edited);
    }
    SUBCASE("arithmetic under other names") {
        for (const char* key : {"diffusion.shift_logits", "xielu.alpha_p", "adapter.lora.alpha"}) {
            auto fresh = edited;
            refused(fresh.set_f32(key, 1), key);
        }
        refused(edited.set_u32("general.quantization_version", 1), "general.quantization_version is 1");
    }
    SUBCASE("a key that nobody knows") {
        refused(edited.set_u32("qwen35.something.new", 1), "qwen35.something.new");
    }
    SUBCASE("what says nothing of numbers") {
        edited.set_u32("qwen35.vocab_size", 2048).set_u32("qwen35.vision.block_count", 27).set_u32("qwen35.image_token_id", 5);
        edited.set_bool("qwen35.rope.scaling.finetuned", true).set_text("qwen35.nextn.note", "x");
        edited.set_u32("quantize.imatrix.chunks_count", 9).set_text("general.note", "x").set_u32("another.block_count", 3);
        accepted(edited);
    }
    SUBCASE("the n-gram keys of a prediction block that was grafted on") {
        auto exp = edit("tiny-qwen4exp");
        exp.set_u32("qwen4exp.ple.of_the_graft", 1);
        refused(exp, "qwen4exp.ple.of_the_graft");
        exp.set_u32("qwen4exp.nextn_predict_layers", 1).set_u32("qwen4exp.block_count", 9);
        accepted(exp);
    }
    SUBCASE("whether experts are renormalised is a setting of Qwen4-Exp") {
        auto exp = edit("tiny-qwen4exp");
        CHECK(must(config_of(exp)).renormalise_experts);
        CHECK_FALSE(must(config_of(exp.set_bool("qwen4exp.expert_weights_norm", false))).renormalise_experts);
    }
}

TEST_CASE("N07: shapes are compared extent by extent") {
    auto conv = edit("tiny-qwen35");
    conv.at("blk.0.ssm_conv1d.weight").dims = {512, 4};
    check_error(load_error(conv), errc::shape_mismatch, {"blk.0.ssm_conv1d.weight", "{512, 4}", "{4, 512} is expected"});

    // Every tensor with its extents in another order, in one, or with one of them in two.
    const auto each = []<class Spec>(type_tag<Spec>, const std::string& name) {
        const auto whole = edit(name);
        std::size_t tried = 0;
        const auto refuses = [&](std::size_t i, std::vector<std::uint64_t> dims) {
            auto changed = whole;
            if (changed.tensors[i].dims == dims) return;
            changed.tensors[i].dims = std::move(dims);
            const std::string bytes = changed.whole();
            if (!io::gguf_file::parse(std::as_bytes(std::span(bytes)), "edited.gguf")) return;  // rows that are no whole blocks
            const error e = load_error<Spec>(bytes);
            CHECK_MESSAGE(e.message.find(whole.tensors[i].name) != std::string::npos, whole.tensors[i].name, ": ", e.message);
            ++tried;
        };
        std::set<std::string> roles;
        for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
            const auto& t = whole.tensors[i];
            if (t.name == "token_embd.weight" || !roles.insert(t.name.substr(t.name.find_last_of("0123456789.", 6) + 1)).second)
                continue;
            refuses(i, {t.dims.rbegin(), t.dims.rend()});
            std::uint64_t elements = 1;
            for (const std::uint64_t d : t.dims) elements *= d;
            if (t.dims.size() > 1) refuses(i, {elements});
            auto halved = t.dims;
            halved.back() /= 2;
            halved.push_back(2);
            if (halved.size() <= 4) refuses(i, halved);
        }
        return tried;
    };
    CHECK(each(type_tag<model::qwen35>{}, "tiny-qwen35") > 20);
    CHECK(each(type_tag<model::qwen4exp<4>>{}, "tiny-qwen4exp") > 50);

    // What writers add and drop: extents of 1, the conv's single input a channel.
    auto exp = edit("tiny-qwen4exp");
    exp.at("blk.0.ffn_gate_inp_shexp.weight").dims = {256, 1};
    exp.at("blk.0.ssm_conv1d.weight").dims = {4, 1, 512};
    exp.at("blk.0.ssm_a").dims = {8, 1};
    const error none = load_error<model::qwen4exp<4>>(exp.whole());
    CHECK_MESSAGE(none.message.empty(), none.message);
    exp.at("blk.0.ffn_gate_inp_shexp.weight").dims = {1, 256};
    check_error(load_error<model::qwen4exp<4>>(exp.whole()), errc::shape_mismatch, {"ffn_gate_inp_shexp", "{1, 256}", "{256, 1}"});
}

TEST_CASE("N04: a tensor under the name that another writer gives it") {
    auto edited = edit("tiny-qwen35");
    for (auto& t : edited.tensors)
        if (const auto at = t.name.find("ssm_dt.bias"); at != std::string::npos) t.name.resize(at + 6);
    CHECK(edited.at("blk.0.ssm_dt").dims == std::vector<std::uint64_t>{4});
    const error e = load_error(edited);
    CHECK_MESSAGE(e.message.empty(), e.message);
    // What else such files have: head counts layer by layer, keys of images, the sections three times.
    edited.set_list<std::uint32_t>("qwen35.attention.head_count_kv", 4, {0, 0, 0, 2, 0, 0, 0, 2});
    edited.set_list<std::int32_t>("qwen35.rope.mrope_section", 5, {3, 3, 2}).set_bool("qwen35.rope.mrope_interleaved", true);
    edited.set_list<std::int32_t>("qwen35.mrope_sections", 5, {3, 3, 2}).set_bool("qwen35.ssm.v_head_reordered", true);
    edited.set_u32("qwen35.vision.block_count", 12).set_u32("qwen35.vision_start_token_id", 7);
    edited.erase("qwen35.attention.recurrent_layers");
    const error same = load_error(edited);
    CHECK_MESSAGE(same.message.empty(), same.message);
    auto both = edit("tiny-qwen35");
    both.tensors.push_back(both.at("blk.0.ssm_dt.bias"));
    both.tensors.back().name = "blk.0.ssm_dt";
    check_error(load_error(both), errc::unsupported, {"blk.0.ssm_dt"});
    std::erase_if(both.tensors, [](const auto& t) { return t.name.starts_with("blk.0.ssm_dt"); });
    check_error(load_error(both), errc::not_found, {"blk.0.ssm_dt.bias"});
}

TEST_CASE("N06: a type that is not decoded is named") {
    auto edited = edit("tiny-qwen35");
    auto& t = edited.at("blk.0.ffn_up.weight");
    t.type = 11;
    t.bytes.resize(256 / 256 * 512 * 110);
    check_error(load_error(edited), errc::unsupported_format, {"blk.0.ffn_up.weight", "q3_k", "q4_k"});
    t.type = 31;
    check_error(load_error(edited), errc::unsupported_format, {"blk.0.ffn_up.weight", "q4_0_4_4 (removed from the format)"});
}

TEST_CASE("a tensor that no role reads is refused where it would matter, and ignored elsewhere") {
    const auto with = [](const char* name) {
        auto edited = edit("tiny-qwen35");
        edited.tensors.push_back({name, {256}, 0, std::string(1024, '\0')});
        return load_error(edited);
    };
    for (const char* name :
         {"blk.0.attn_qkv.bias", "blk.3.attn_q.bias", "blk.3.attn_q.scale", "blk.3.attn_q.input_scale", "blk.0.attn_norm.bias",
          "blk.0.ssm_conv1d.bias", "blk.0.ffn_norm.weight", "blk.3.attn_sinks.weight", "blk.0.exp_probs_b.bias",
          "blk.0.layer_output_scale.weight", "blk.3.indexer.q_proj.weight", "blk.0.ple_key.weight", "blk.0.new_norm.weight",
          "rope_freqs.weight", "rope_factors_long.weight", "output.bias", "output_norm.bias", "token_embd_norm.weight",
          "per_layer_token_embd.weight", "position_embd.weight"}) {
        CAPTURE(name);
        check_error(with(name), errc::unsupported, {name});
    }
    for (const char* name : {"v.blk.0.attn_q.bias", "v.post_ln.bias", "mm.0.bias", "mtp.fc.weight", "nextn.eh_proj.weight",
                             "blk.0.something.weight", "something.weight", "blk.8.nextn.eh_proj.weight", "blk.0.nextn.enorm.weight"}) {
        const error e = with(name);
        CHECK_MESSAGE(e.message.empty(), name, ": ", e.message);
    }
    // A prediction block is ignored with all its tensors; a block that is neither counted nor one is not.
    auto predicted = edit("tiny-qwen35");
    predicted.tensors.push_back({"blk.8.attn_norm.weight", {256}, 0, std::string(1024, '\0')});
    check_error(load_error(predicted), errc::malformed_file, {"qwen35.block_count", "blk.8.attn_norm.weight"});
    predicted.tensors.push_back({"blk.8.nextn.enorm.weight", {256}, 0, std::string(1024, '\0')});
    CHECK(load_error(predicted).message.empty());
    predicted.set_u32("qwen35.block_count", 9).set_u32("qwen35.nextn_predict_layers", 1);
    CHECK(load_error(predicted).message.empty());
    predicted.set_u32("qwen35.nextn_predict_layers", 2);  // would leave out a layer of the trunk
    check_error(load_error(predicted), errc::malformed_file, {"qwen35.nextn_predict_layers", "7 blocks", "blk.7."});

    // No tensor that a model reads has a name that would be ignored.
    for (const char* name : {"tiny-qwen35", "tiny-qwen4exp"})
        for (const auto& tensor : edit(name).tensors)
            CHECK_MESSAGE(model::detail::gguf_tensor_matters(tensor.name, 8), tensor.name);
}

TEST_CASE("N02: a part alone is no model") {
    const auto parts = edit("tiny-qwen35").parts(2);
    const auto file = must(io::gguf_file::parse(std::as_bytes(std::span(parts[0])), "part.gguf"));
    const auto sizes = model::read_config(file);
    REQUIRE_FALSE(sizes.has_value());
    check_error(sizes.error(), errc::invalid_argument, {"part.gguf", "one of several files"});
}

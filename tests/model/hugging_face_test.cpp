// Hugging Face checkpoints: what config.json may say, which tensors must be there, where generation ends.
#include <array>
#include <cmath>
#include <deque>
#include <map>

#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

/// A checkpoint like a golden file's, with some tensors gone, some new, and other files beside it.
struct changed_store {
    explicit changed_store(const io::safetensors_file& file, const std::vector<std::string>& gone = {}) {
        for (const io::safetensor& tensor : file.tensors())
            if (std::find(gone.begin(), gone.end(), tensor.name) == gone.end()) all.push_back(tensor);
    }
    void add(const std::string& name, const std::string& like) {
        io::safetensor tensor = *find(like);
        tensor.name = name;
        all.push_back(tensor);
    }
    const io::safetensor* find(std::string_view name) const {
        for (const io::safetensor& tensor : all)
            if (tensor.name == name) return &tensor;
        return nullptr;
    }
    const std::deque<io::safetensor>& tensors() const { return all; }
    result<std::string> read_text(const std::string& name) const {
        const auto found = files.find(name);
        if (found == files.end()) return fail(errc::not_found, "no file ", name);
        return found->second;
    }

    std::deque<io::safetensor> all;
    std::map<std::string, std::string> files;
};

struct checkpoint {
    explicit checkpoint(const std::string& name)
        : golden(name), config(nlohmann::json::parse(golden.data.params().at("config").text())) {}
    golden_model golden;
    nlohmann::json config;

    result<model::config> read(const nlohmann::json& changed) const { return model::read_config(changed.dump(), golden.file); }
    nlohmann::json with(const char* pointer, const nlohmann::json& value) const {
        auto out = config;
        out[nlohmann::json::json_pointer(pointer)] = value;
        return out;
    }
    void refused(const nlohmann::json& changed, std::initializer_list<const char*> parts, errc code = errc::unsupported) const {
        const auto got = read(changed);
        CAPTURE(parts.size() != 0 ? *parts.begin() : "");
        REQUIRE_FALSE(got.has_value());
        CHECK_MESSAGE(got.error().code == code, got.error().message);
        for (const char* part : parts)
            CHECK_MESSAGE(got.error().message.find(part) != std::string::npos, got.error().message, " should say ", part);
    }
};

}  // namespace

TEST_CASE("N13: a setting that changes the model is refused by its name") {
    const checkpoint dense("models/qwen3_5_dense"), sparse("models/qwen4_exp");
    for (const checkpoint* one : {&dense, &sparse}) {
        CHECK(one->read(one->config).has_value());
        one->refused(one->with("/attention_bias", true), {"\"attention_bias\" is 'true'", "false"});
        one->refused(one->with("/hidden_act", "gelu"), {"hidden_act", "gelu", "silu"});
        one->refused(one->with("/attn_output_gate", false), {"attn_output_gate"});
        one->refused(one->with("/use_qk_norm", false), {"use_qk_norm"});
        one->refused(one->with("/mlp_bias", true), {"\"mlp_bias\" is 'true'"});
        one->refused(one->with("/final_logit_softcapping", 30.0), {"final_logit_softcapping", "30.0"});
        one->refused(one->with("/use_sliding_window", true), {"use_sliding_window"});
        one->refused(one->with("/sliding_window", 4096), {"sliding_window", "4096"});
        one->refused(one->with("/quantization_config", {{"quant_method", "fp8"}}), {"quantization_config", "BF16"});
        one->refused(one->with("/is_encoder_decoder", true), {"is_encoder_decoder"});
    }
    dense.refused(dense.with("/output_gate_type", "sigmoid"), {"output_gate_type", "sigmoid", "silu"});
    dense.refused(dense.with("/hc_count", 4), {"hc_count"});
    dense.refused(dense.with("/num_experts", 8), {"num_experts"});
    dense.refused(dense.with("/layer_types/3", "indexed_attention"), {"indexed_attention"});
    dense.refused(dense.with("/layer_types/3", "sliding_attention"), {"sliding_attention"});
    sparse.refused(sparse.with("/output_gate_type", "silu"), {"output_gate_type", "sigmoid"});
    sparse.refused(sparse.with("/indexer_kv_heads", 2), {"indexer_kv_heads"});
    sparse.refused(sparse.with("/mlp_only_layers", {1}), {"mlp_only_layers"});
    sparse.refused(sparse.with("/indexer_budget", 18), {"indexer_budget", "blocks of 4"}, errc::malformed_file);
    auto silent = sparse.config;
    silent.erase("output_gate_type");
    sparse.refused(silent, {"output_gate_type", "silu", "sigmoid"});
}

TEST_CASE("settings without an effect, and those that say nothing, may be there") {
    const checkpoint dense("models/qwen3_5_dense");
    auto config = dense.config;
    config.update({{"output_gate_type", "swish"},
                   {"hidden_act", "swish"},
                   {"attn_output_gate", true},
                   {"mamba_ssm_dtype", "float32"},
                   {"mtp_num_hidden_layers", 1},
                   {"mtp", {{"num_hidden_layers", 1}}},
                   {"torch_dtype", "bfloat16"},
                   {"temperature", 0.7},
                   {"unsloth_fixed", true},
                   {"_name_or_path", "x"},
                   {"sliding_window", 4096},
                   {"use_sliding_window", false},
                   {"new_setting", nullptr},
                   {"other_setting", 0},
                   {"third_setting", false},
                   {"fourth_setting", nlohmann::json::array()},
                   {"num_experts", 0},
                   {"full_attention_interval", 4},
                   {"quantization_config", nullptr}});
    const auto plain = must(dense.read(dense.config)), got = must(dense.read(config));
    CHECK(got.layers == plain.layers);
    CHECK(got.rotary_dim == plain.rotary_dim);
}

TEST_CASE("the text model within a multimodal configuration") {
    const checkpoint dense("models/qwen3_5_dense");
    auto text = dense.config;
    text.erase("model_type");
    const nlohmann::json whole = {{"model_type", "qwen3_5"},      {"text_config", text},
                                  {"tie_word_embeddings", false}, {"vision_config", {{"depth", 27}, {"hidden_act", "gelu"}}},
                                  {"image_token_id", 5},          {"architectures", {"Qwen3_5ForConditionalGeneration"}},
                                  {"language_model_only", false}};
    CHECK(must(dense.read(whole)).architecture == "qwen35");
    auto changed = whole;
    changed["text_config"]["attention_bias"] = true;
    dense.refused(changed, {"\"text_config.attention_bias\""});
    changed = whole;
    changed["attention_bias"] = true;
    dense.refused(changed, {"\"attention_bias\""});
    changed = whole;
    changed["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
    dense.refused(changed, {"\"rope_scaling\"", "belongs in \"text_config\""});
    changed = whole;
    changed["hidden_size"] = text["hidden_size"];
    CHECK(dense.read(changed).has_value());
    changed["hidden_size"] = 1;
    dense.refused(changed, {"\"hidden_size\""});
    changed = whole;
    changed["quantization_config"] = {{"quant_method", "fp8"}};
    dense.refused(changed, {"quantization_config"});
    changed = whole;
    changed["text_config"] = 3;
    dense.refused(changed, {"text_config"}, errc::malformed_file);
}

TEST_CASE("configurations as published models have them") {
    const checkpoint dense("models/qwen3_5_dense"), sparse("models/qwen4_exp");
    nlohmann::json text = {{"attention_bias", false},
                           {"attention_dropout", 0.0},
                           {"attn_output_gate", true},
                           {"bos_token_id", 248044},
                           {"dtype", "bfloat16"},
                           {"eos_token_id", 248044},
                           {"full_attention_interval", 4},
                           {"head_dim", 256},
                           {"hidden_act", "silu"},
                           {"hidden_size", 5120},
                           {"initializer_range", 0.02},
                           {"intermediate_size", 17408},
                           {"linear_conv_kernel_dim", 4},
                           {"linear_key_head_dim", 128},
                           {"linear_num_key_heads", 16},
                           {"linear_num_value_heads", 48},
                           {"linear_value_head_dim", 128},
                           {"mamba_ssm_dtype", "float32"},
                           {"max_position_embeddings", 262144},
                           {"model_type", "qwen3_5_text"},
                           {"mtp_num_hidden_layers", 1},
                           {"mtp_use_dedicated_embeddings", false},
                           {"num_attention_heads", 24},
                           {"num_hidden_layers", 64},
                           {"num_key_value_heads", 4},
                           {"output_gate_type", "swish"},
                           {"pad_token_id", nullptr},
                           {"partial_rotary_factor", 0.25},
                           {"rms_norm_eps", 1e-6},
                           {"tie_word_embeddings", false},
                           {"use_cache", true},
                           {"vocab_size", 248320},
                           {"rope_parameters",
                            {{"mrope_interleaved", true},
                             {"mrope_section", {11, 11, 10}},
                             {"partial_rotary_factor", 0.25},
                             {"rope_theta", 10000000},
                             {"rope_type", "default"}}}};
    nlohmann::json whole = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                            {"image_token_id", 248056},
                            {"language_model_only", false},
                            {"model_type", "qwen3_5"},
                            {"text_config", text},
                            {"tie_word_embeddings", false},
                            {"transformers_version", "5.6.2"},
                            {"video_token_id", 248057},
                            {"vision_config", {{"deepstack_visual_indexes", nlohmann::json::array()}, {"depth", 27}}},
                            {"vision_end_token_id", 248054},
                            {"vision_start_token_id", 248053}};
    const auto got = must(dense.read(whole));
    CHECK(got.layers.size() == 64);
    CHECK(got.layers[63] == model::layer_kind::attention);
    CHECK(got.rotary_dim == 64);
    CHECK(got.rope_sections == std::array<int, 3>{11, 11, 10});
    must(model::validate<model::qwen35>(got));
    // As other exporters write it: rotary settings beside the sizes.
    for (const auto& item : text["rope_parameters"].items()) whole["text_config"][item.key()] = item.value();
    whole["text_config"].erase("rope_parameters");
    CHECK(must(dense.read(whole)).rope_sections == got.rope_sections);

    text.erase("intermediate_size");
    text["model_type"] = "qwen4_exp_text";
    text["output_gate_type"] = "sigmoid";
    text.update({{"hidden_size", 2560},
                 {"num_hidden_layers", 48},
                 {"num_key_value_heads", 2},
                 {"num_experts", 512},
                 {"num_experts_per_tok", 10},
                 {"moe_intermediate_size", 640},
                 {"shared_expert_intermediate_size", 640},
                 {"norm_topk_prob", true},
                 {"output_router_logits", false},
                 {"router_aux_loss_coef", 0.001},
                 {"hc_count", 4},
                 {"hc_lowrank", 320},
                 {"indexer_n_heads", 4},
                 {"indexer_kv_heads", 1},
                 {"indexer_head_dim", 128},
                 {"indexer_budget", 2048},
                 {"indexer_compress_ratio", 4},
                 {"ple_layer_ids", {2}},
                 {"ple_embed_dim", 2560},
                 {"ple_conv_kernel_size", 4},
                 {"ngram_size", 3},
                 {"heads_per_ngram", 8},
                 {"ngram_vocab_size_base", 20000000},
                 {"make_ngram_vocab_size_divisible_by", 128},
                 {"seed", 1234},
                 {"split_ngram_parts", 128},
                 {"mtp", {{"num_hidden_layers", 1}, {"layer_types", {"full_attention"}}, {"hybrid", true}}}});
    whole["model_type"] = "qwen4_exp";
    whole["text_config"] = text;
    const auto next = must(sparse.read(whole));
    must(model::validate<model::qwen4exp<4>>(next));
    REQUIRE(next.ngrams.size() == 1);
    CHECK(next.ngrams[0].layer == 1);
    // Multipliers as published files have them.
    CHECK(next.ngrams[0].hash.multipliers == std::vector<std::uint64_t>{23703573157769u, 20109073645365u, 8052911324071u});
}

TEST_CASE("N01: rotary scaling is read, from either object, and what is not computed is refused") {
    const checkpoint dense("models/qwen3_5_dense");
    const auto rope = [&](const nlohmann::json& more) {
        auto out = dense.config;
        out["rope_parameters"].update(more);
        return out;
    };
    CHECK(must(dense.read(dense.config)).rope_scaling == ops::rope_scaling{});
    const auto linear = must(dense.read(rope({{"rope_type", "linear"}, {"factor", 2.5}}))).rope_scaling;
    CHECK(linear.kind == ops::rope_scaling_kind::linear);
    CHECK(linear.factor == 2.5);
    CHECK(linear.magnitude == 1);

    const nlohmann::json more = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
    const auto yarn = must(dense.read(rope(more))).rope_scaling;
    CHECK(yarn.kind == ops::rope_scaling_kind::yarn);
    CHECK(yarn.factor == 4);
    CHECK(yarn.original_context == 128);
    CHECK(yarn.beta_fast == 32);
    CHECK(yarn.beta_slow == 1);
    CHECK(yarn.whole_ends);
    CHECK(std::abs(yarn.magnitude - 1.138629436) < 1e-8);
    // In the place where older files have it, with the base beside it.
    auto older = dense.config;
    older.erase("rope_parameters");
    older["rope_theta"] = dense.config["rope_parameters"]["rope_theta"];
    older["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
    CHECK(must(dense.read(older)).rope_scaling == yarn);
    CHECK(must(dense.read(older)).rotary_dim == 8);  // of 32: a quarter, transformers' default
    // Without a factor: the quotient of the contexts, 512 / 128.
    CHECK(must(dense.read(rope({{"rope_type", "yarn"}, {"original_max_position_embeddings", 128}}))).rope_scaling == yarn);
    auto beside = rope(more);
    beside["original_max_position_embeddings"] = 64;
    CHECK(must(dense.read(beside)).rope_scaling.original_context == 64);

    auto all = more;
    all.update({{"beta_fast", 16}, {"beta_slow", 2}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}, {"truncate", false}});
    const auto every = must(dense.read(rope(all))).rope_scaling;
    CHECK(every.beta_fast == 16);
    CHECK(every.beta_slow == 2);
    CHECK_FALSE(every.whole_ends);
    CHECK(std::abs(every.magnitude - (1 + 0.1 * std::log(4.0)) / (1 + 0.05 * std::log(4.0))) < 1e-8);
    all["attention_factor"] = 1.5;
    CHECK(must(dense.read(rope(all))).rope_scaling.magnitude == 1.5);

    for (const char* type : {"dynamic", "longrope", "llama3", "proportional", "mrope"})
        dense.refused(rope({{"rope_type", type}, {"factor", 4.0}}), {"rope_parameters", type});
    dense.refused(rope({{"factor", 4.0}}), {"rope_parameters.factor", "default"});
    dense.refused(rope({{"rope_type", "linear"}, {"factor", 4.0}, {"attention_factor", 2.0}}), {"attention_factor", "linear"});
    dense.refused(rope({{"rope_type", "linear"}}), {"factor"}, errc::not_found);
    dense.refused(rope({{"mrope_interleaved", false}}), {"mrope_interleaved"});
    dense.refused(rope({{"full_attention", {{"rope_theta", 1.0}}}}), {"full_attention"});
    dense.refused(rope({{"long_factor", {1.0}}}), {"long_factor"});
    dense.refused(rope({{"rope_type", "yarn"}, {"factor", "four"}}), {"factor", "number"}, errc::malformed_file);
    auto both = rope(more);
    both["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    dense.refused(both, {"rope_parameters", "rope_scaling", "different"}, errc::malformed_file);
    CHECK(dense.read(rope({{"factor", nullptr}, {"attention_factor", nullptr}})).has_value());
}

TEST_CASE("N08: a head that is neither there nor tied is an error") {
    const checkpoint dense("models/qwen3_5_dense");
    const changed_store without(dense.golden.file, {"lm_head.weight"});
    const auto read = [&](const nlohmann::json& config) { return model::read_config(config.dump(), without); };
    for (const nlohmann::json& value : {nlohmann::json(false), nlohmann::json(nullptr)}) {
        const auto got = read(dense.with("/tie_word_embeddings", value));
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == errc::not_found);
        CHECK(got.error().message.find("lm_head.weight") != std::string::npos);
        CHECK(got.error().message.find("tie_word_embeddings") != std::string::npos);
    }
    CHECK(read(dense.with("/tie_word_embeddings", true)).has_value());
    CHECK_FALSE(read(dense.with("/tie_word_embeddings", "yes")).has_value());
    // Either level of a multimodal configuration may say it.
    for (const char* pointer : {"/tie_word_embeddings", "/text_config/tie_word_embeddings"}) {
        nlohmann::json whole = {{"model_type", "qwen3_5"}, {"text_config", dense.config}};
        CHECK_FALSE(read(whole).has_value());
        whole[nlohmann::json::json_pointer(pointer)] = true;
        CHECK(read(whole).has_value());
    }
    // Said to be tied, but there: it counts.
    const auto tied = dense.with("/tie_word_embeddings", true);
    const auto weights = [&](const auto& store) {
        return must(model::read_weights<model::qwen35, quant::all>(store, must(model::read_config(tied.dump(), store))));
    };
    const auto both = weights(dense.golden.file), alone = weights(without);
    CHECK(both.head.data == dense.golden.file.find("lm_head.weight")->bytes.data());
    CHECK(alone.head.data == alone.embedding.data);
}

TEST_CASE("N13: a tensor of the trunk that nobody reads is named; others may be there") {
    const checkpoint dense("models/qwen3_5_dense");
    const auto sizes = must(dense.read(dense.config));
    const auto load = [&](const changed_store& store) { return model::read_weights<model::qwen35, quant::all>(store, sizes); };
    for (const char* name : {"model.layers.3.self_attn.q_proj.bias", "model.layers.0.linear_attn.in_proj_a.bias",
                             "model.layers.0.mlp.down_proj.weight_scale_inv", "lm_head.bias", "model.norm.bias",
                             "model.layers.1.self_attn.q_proj.weight"}) {
        changed_store store(dense.golden.file);
        store.add(name, "model.norm.weight");
        const auto got = load(store);
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == errc::unsupported);
        CHECK_MESSAGE(got.error().message.find(name) != std::string::npos, got.error().message);
    }
    changed_store store(dense.golden.file);
    for (const char* name : {"model.visual.blocks.0.attn.qkv.bias", "mtp.layers.0.self_attn.q_proj.weight", "mtp.norm.weight",
                             "model.layers.4.mlp.down_proj.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "anything"})
        store.add(name, "model.norm.weight");
    CHECK(load(store).has_value());
}

TEST_CASE("N10: generation ends where any of a checkpoint's files says") {
    const checkpoint dense("models/qwen3_5_dense"), sparse("models/qwen4_exp");
    using ids = std::vector<std::int32_t>;
    CHECK(must(dense.read(dense.with("/eos_token_id", {45, 28}))).eos == ids{45, 28});
    const auto both = [&](changed_store& store, const nlohmann::json& config, const char* generation) {
        store.files["generation_config.json"] = generation;
        return model::read_config(config.dump(), store);
    };
    changed_store store(dense.golden.file);
    CHECK(must(model::read_config(dense.with("/eos_token_id", 7).dump(), store)).eos == ids{7});
    CHECK(must(both(store, dense.with("/eos_token_id", 7), R"({"eos_token_id":[9,7,8],"temperature":0.6})")).eos == ids{7, 9, 8});
    CHECK(must(both(store, dense.config, R"({"eos_token_id":9})")).eos == ids{9});
    CHECK(must(both(store, dense.config, "{}")).eos.empty());
    const nlohmann::json whole = {
        {"model_type", "qwen3_5"}, {"text_config", dense.with("/eos_token_id", 7)}, {"eos_token_id", {3, 7}}};
    CHECK(must(both(store, whole, "{}")).eos == ids{7, 3});
    for (const char* bad : {"{", "[]", R"({"eos_token_id":"x"})", R"({"eos_token_id":-1})"}) {
        const auto got = both(store, dense.config, bad);
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().message.find("generation_config.json") != std::string::npos);
    }
    // n-gram contexts start with the model's own, whatever else ends generation.
    changed_store other(sparse.golden.file);
    const auto sizes = must(both(other, sparse.config, R"({"eos_token_id":[3,7]})"));
    CHECK(sizes.eos == ids{7, 3});
    CHECK(sizes.ngrams.front().hash.eos == 7);
}

TEST_CASE("n-gram modules are numbered by layer, in whatever order they are named") {
    const checkpoint sparse("models/qwen4_exp");
    const auto plain = must(sparse.read(sparse.config)), turned = must(sparse.read(sparse.with("/ple_layer_ids", {3, 1, 3})));
    REQUIRE(turned.ngrams.size() == 2);
    CHECK(turned.ngrams[0].layer == plain.ngrams[0].layer);
    CHECK(turned.ngrams[1].hash.multipliers == plain.ngrams[1].hash.multipliers);
}

TEST_CASE("a broken config.json is refused with its place") {
    const checkpoint dense("models/qwen3_5_dense");
    const auto place = [&](const std::string& text) {
        const auto got = model::read_config(text, dense.golden.file);
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == errc::malformed_file);
        return got.error().message;
    };
    CHECK(place("{\n  \"rms_norm_eps\": NaN\n}") ==
          "config.json: not valid JSON at line 2, column 19: NaN and Infinity are Python's, not JSON's");
    CHECK(place("{\"a\": [1,\n\n -Infinity]}").find("line 3, column 3: NaN and Infinity") != std::string::npos);
    CHECK(place("{\"a\": 1,}").find("line 1, column 9: '}' does not belong there") != std::string::npos);
    CHECK(place("{\"a\": 1}\n\nx").find("line 3, column 1") != std::string::npos);
    CHECK(place("{\"a\": 1").find("line 1, column 8: the text ends too early") != std::string::npos);
    CHECK(place("").find("line 1, column 1: the text ends too early") != std::string::npos);
    CHECK(place("{\"a\": 1e999}").find("line 1, column ") != std::string::npos);
    CHECK(place("{\"a\":{\"b\":1,\"c\":2,\"b\":1}}") == "config.json: key 'a.b' is there twice");
    const std::string marked = "\xEF\xBB\xBF" + dense.config.dump();
    CHECK(model::read_config(marked, dense.golden.file).has_value());
    CHECK(place("\xEF\xBB\xBF{\n?}").find("line 2, column 1") != std::string::npos);
}

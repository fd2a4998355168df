// Loading: what a file may get wrong, and what the error says.
#include <cstring>

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
        bytes[find(bytes, "blk.3.attn_k.weight") + 4] = std::byte{'9'};
        check_error(load(bytes), errc::not_found, {"blk.3.attn_k.weight", "missing"});
    }
    SUBCASE("of another shape") {
        auto bytes = embedded_file("tiny-qwen4exp");
        const std::string_view name = "blk.3.attn_k.weight";
        put<std::uint64_t>(bytes, find(bytes, name) + name.size() + 4 + 8, 64);  // n_dims, then the dims; 128 rows before
        check_error(load(bytes), errc::shape_mismatch, {"blk.3.attn_k.weight", "[64, 256]", "128"});
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

// C52 at the level of models: a damaged file is refused, or runs; it never crashes and never takes memory out of proportion.
#include <cstring>
#include <random>

#include "model_support.hpp"
#include "sanitizer.hpp"

using namespace frugal;
using namespace test;

namespace {

/// Loads and runs two tokens. Whether that went well does not matter here; that it returns does.
template <class Spec>
bool survives(std::span<const std::byte> bytes) {
    using device_type = device::cpu<isa::baseline>;
    using model_type = model::transformer<Spec, model::convention::gguf, policies<device_type>>;
    const auto file = io::gguf_file::parse(bytes, "damaged.gguf");
    if (!file) return false;
    auto sizes = model::read_config(*file);
    if (!sizes) return false;
    auto weights = model::read_weights<Spec, quant::all>(*file, *sizes);
    if (!weights) return false;
    auto m = model_type::create(*std::move(sizes), *std::move(weights));
    if (!m) return false;
    auto state = m->make_state({.sequences = 1, .max_tokens = 8});
    if (!state) return false;
    device_type device;
    auto pass = m->make_pass(device);
    if (!pass) return false;
    const std::int32_t tokens[] = {1, 2};
    const segment whole[] = {{sequence_id{0}, 0, 2}};
    const std::size_t last[] = {1};
    std::vector<float> logits(m->sizes().vocabulary);
    return m->forward(*pass, *state, {tokens, whole, {}, last},
                      matrix_view<float>(logits.data(), 1, logits.size())).has_value();
}

/// The part of the file that is not the vocabulary: keys before it, and the tensor table after it.
template <class Spec>
void damage(const std::string& name) {
    const auto whole = embedded_file(name);
    const std::string_view text(reinterpret_cast<const char*>(whole.data()), whole.size());
    const std::size_t vocabulary = text.find("tokenizer.ggml.model");
    const std::size_t table = text.find("token_embd.weight");
    const std::size_t data = text.rfind(".weight") + 64;
    REQUIRE(vocabulary != std::string_view::npos);
    REQUIRE(table != std::string_view::npos);
    CHECK(survives<Spec>(whole));
    std::mt19937 random(20261129);
    std::size_t ran = 0;
    auto bytes = whole;
    constexpr std::size_t files = test::rounds(1500);
    for (std::size_t round = 0; round < files; ++round) {
        const bool keys = round % 2 == 0;
        const std::size_t from = keys ? 24 : table, to = keys ? vocabulary : data;
        // Single bytes, and whole words of small, large and negative numbers: sizes are four and eight bytes long.
        const std::size_t at = from + random() % (to - from - 8);
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, 8);
        const std::uint64_t values[] = {0, 1, 0x7FFFFFFF, 0xFFFFFFFF, ~std::uint64_t{0}, random(), word ^ (1ull << random() % 64)};
        const std::uint64_t value = values[random() % std::size(values)];
        const std::size_t width = random() % 2 == 0 ? 4 : 8;
        std::memcpy(bytes.data() + at, &value, width);
        ran += survives<Spec>(bytes) ? 1u : 0u;
        std::memcpy(bytes.data() + at, whole.data() + at, 8);
    }
    MESSAGE(name, ": ", ran, " of ", files, " damaged files still ran");
    CHECK(ran < files);
}

}  // namespace

TEST_CASE("C52 damaged keys and tensor tables: tiny-qwen35") { damage<model::qwen35>("tiny-qwen35"); }
TEST_CASE("C52 damaged keys and tensor tables: tiny-qwen4exp") { damage<model::qwen4exp<4>>("tiny-qwen4exp"); }

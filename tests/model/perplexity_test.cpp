// Perplexity of the trained models: within 0.1 % of transformers in f32 where it has computed from the same weights, quantised
// files within 0.5 % of llama.cpp's own figure for the same file. Eight windows of 512 tokens, each from an empty state, every
// token of a window but its first.
#include <map>

#include "../io/gguf_editor.hpp"
#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/quant/codec.hpp"
#include "isa.hpp"
#include "perplexity.hpp"

using namespace frugal;
using namespace test;

namespace {

/// Every BF16 matrix of a file in Q8_0, made by the reference encoder; rows that are no multiple of 32 stay.
class q8_0_source {
public:
    explicit q8_0_source(const io::gguf_file& file) : inner_(file) {}
    [[nodiscard]] result<std::optional<model::source_tensor>> find(const std::string& name) const {
        FRUGAL_TRY_ASSIGN(auto found, inner_.find(name));
        if (!found || found->type != quant::bf16::type || found->shape.back() % quant::q8_0::block_size != 0) return found;
        auto& bytes = kept_[name];
        if (bytes.empty()) {
            const std::size_t cols = static_cast<std::size_t>(found->shape.back());
            const std::size_t rows = found->bytes.size() / (2 * cols),
                              row_bytes = cols / quant::q8_0::block_size * quant::q8_0::block_bytes;
            bytes.resize(rows * row_bytes);
            std::vector<float> row(cols);
            for (std::size_t r = 0; r < rows; ++r) {
                quant::decode_row<quant::bf16>(found->bytes.data() + r * cols * 2, cols, row.data());
                FRUGAL_TRY(quant::encode_row<quant::q8_0>(row, std::span(bytes).subspan(r * row_bytes, row_bytes)));
            }
        }
        found->type = quant::q8_0::type;
        found->bytes = bytes;
        return found;
    }

private:
    model::gguf_source inner_;
    mutable std::map<std::string, std::vector<std::byte>> kept_;
};

/// Runs `body` with a model of the file on the machine's best instruction set.
template <class Spec, class Body>
void with_best(const gguf_model& file, Body&& body) {
    must(device::dispatch<test::machine_isas>("", [&]<class Isa>(type_tag<Isa>) {
        threads executor(2);
        auto m = file.run<Spec, Isa>({.sequences = 1, .max_tokens = 512}, executor);
        body(*m);
    }));
}

template <class Spec>
void check_file(const std::string& name, const std::string& format, const std::string& path, double want, double share) {
    CAPTURE(format);
    const gguf_model file(path);
    with_best<Spec>(file, [&](auto& m) { check_within(perplexity(m, heldout(name)), want, share); });
}

}  // namespace

TEST_CASE("perplexity: tiny-qwen35 BF16") {
    check_file<model::qwen35>("tiny-qwen35", "BF16", data("tiny-qwen35/tiny-qwen35-BF16.gguf"), transformers("tiny-qwen35"),
                              0.001);
}
// llama.cpp of the same file with these three keys: 13.635; the file as it is has 13.369.
TEST_CASE("N01: perplexity with yarn: tiny-qwen35 BF16") {
    const gguf_model plain(data("tiny-qwen35/tiny-qwen35-BF16.gguf"));
    gguf_editor edited(plain.file);
    edited.set_text("qwen35.rope.scaling.type", "yarn").set_f32("qwen35.rope.scaling.factor", 4);
    edited.set_u32("qwen35.rope.scaling.original_context_length", 1024);
    const std::string bytes = edited.whole();
    const gguf_model scaled(must(io::gguf_file::parse(std::as_bytes(std::span(bytes)), "scaled.gguf")));
    with_best<model::qwen35>(scaled, [&](auto& m) { check_within(perplexity(m, heldout("tiny-qwen35")), 13.635, 0.001); });
}
TEST_CASE("perplexity: tiny-qwen35 Q8_0") {
    const gguf_model file(data("tiny-qwen35/tiny-qwen35-BF16.gguf"));
    const q8_0_source source(file.file);
    must(device::dispatch<test::machine_isas>("", [&]<class Isa>(type_tag<Isa>) {
        using running = running_model<model::qwen35, model::convention::gguf, counting_cpu<Isa>>;
        using model_type = typename running::model_type;
        auto weights = must(model::bind<model::qwen35, model::convention::gguf, typename model_type::formats>(
            source, file.sizes, model::tensor_names<model::convention::gguf>{}));
        threads executor(2);
        running m(must(model_type::create(file.sizes, std::move(weights))), {.sequences = 1, .max_tokens = 512}, {}, executor);
        check_within(perplexity(m, heldout("tiny-qwen35")), llama_cpp("tiny-qwen35", "Q8_0"), 0.005);
    }));
}
TEST_CASE("perplexity: tiny-qwen35 Q4_K_M") {
    check_file<model::qwen35>("tiny-qwen35", "Q4_K_M", FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf",
                              llama_cpp("tiny-qwen35", "Q4_K_M"), 0.005);
}
TEST_CASE("perplexity: tiny-qwen35 IQ4_XS") {
    check_file<model::qwen35>("tiny-qwen35", "IQ4_XS", data("tiny-qwen35/tiny-qwen35-IQ4_XS.gguf"),
                              llama_cpp("tiny-qwen35", "IQ4_XS"), 0.005);
}
TEST_CASE("perplexity: tiny-qwen4exp Q4_K_M") {
    const gguf_model file(FRUGAL_EXAMPLE_MODELS "/tiny-qwen4exp-Q4_K_M.gguf");
    with_best<model::qwen4exp<4>>(file, [](auto& m) {
        const double found = perplexity(m, heldout("tiny-qwen4exp"));
        check_within(found, transformers("tiny-qwen4exp"), 0.001);
        check_within(found, llama_cpp("tiny-qwen4exp", "Q4_K_M"), 0.005);
    });
}

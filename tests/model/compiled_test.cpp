// Whole models behind one class (frugal::models): the bits of the template, and sequences that are kept, copied and taken back.
#include <cstdlib>

#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/model/compiled.hpp"
#include "model_support.hpp"

using namespace frugal;
using namespace test;

namespace {

std::vector<float> run(model::compiled_model& m, std::span<const std::int32_t> tokens, sequence_id s = sequence_id{0}) {
    std::vector<std::size_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    std::vector<float> logits(rows.size() * m.sizes().vocabulary);
    const segment whole{s, 0, tokens.size()};
    must(m.forward({tokens, {&whole, 1}, {}, rows}, {logits.data(), rows.size(), m.sizes().vocabulary}));
    return logits;
}

template <class Spec>
void check_compiled(const std::string& name) {
    const std::string path = FRUGAL_EXAMPLE_MODELS "/" + name + "-Q4_K_M.gguf";
    const gguf_model file(path);
    const std::vector<std::int32_t> tokens = {1, 7, 300, 42, 5, 5, 19, 250, 3, 11, 64, 9, 2};
    const std::span<const std::int32_t> text = tokens;
    const model::state_options limits{.sequences = 2, .max_tokens = 32, .checkpoints = 4};
    test::for_each_isa([&]<class Isa>(type_tag<Isa>) {
        using device_type = device::packed_cpu<Isa, counters_on, quant::all, device::q8_activations>;
        auto direct = file.run_on<Spec, device_type>(limits, {});
        must(direct->model.pack(direct->pass));  // as loading does: all experts, not only those that this text needs
        const auto want = direct->run(text);

        ::setenv("FRUGAL_ISA", std::string(Isa::name).c_str(), 1);
        std::uint64_t packed = 0;
        const auto m =
            must(model::compiled_model::load(path, {.state = limits, .progress = [&](auto done, auto) { packed = done; }}));
        ::unsetenv("FRUGAL_ISA");
        CHECK(m->isa() == Isa::name);
        CHECK(packed != 0);
        CHECK(m->image_bytes() == direct->store.bytes());
        CHECK(m->sizes().layers == file.sizes.layers.size());
        CHECK(same_bits(run(*m, text), want));
        CHECK(m->counted(counter::images_packed) == direct->store.counted(counter::images_packed));
        CHECK(m->counted(counter::tokens) == tokens.size());

        // Another sequence by a copy or by bytes, and tokens that are taken back.
        const std::vector<float> tail(want.end() - static_cast<std::ptrdiff_t>(2 * m->sizes().vocabulary), want.end());
        must(m->rollback(sequence_id{0}, 2));
        must(m->copy(sequence_id{0}, sequence_id{1}));
        const auto saved = must(m->save_sequence(sequence_id{0}));
        CHECK(same_bits(run(*m, text.last(2)), tail));
        CHECK(same_bits(run(*m, text.last(2), sequence_id{1}), tail));
        m->clear(sequence_id{1});
        CHECK(m->length(sequence_id{1}) == 0);
        must(m->load_sequence(sequence_id{1}, saved));
        CHECK(m->length(sequence_id{1}) == tokens.size() - 2);
        CHECK(same_bits(run(*m, text.last(2), sequence_id{1}), tail));
        CHECK(!m->load_sequence(sequence_id{1}, std::span(saved).first(saved.size() - 1)));
        CHECK(!m->save_sequence(sequence_id{2}));
    });
}

}  // namespace

TEST_CASE("compiled models have the template's bits: tiny-qwen35") { check_compiled<model::qwen35>("tiny-qwen35"); }
TEST_CASE("compiled models have the template's bits: tiny-qwen4exp") { check_compiled<model::qwen4exp<>>("tiny-qwen4exp"); }
TEST_CASE("a compiled model says why a file is none") {
    const auto m = model::compiled_model::load("/nonexistent.gguf");
    REQUIRE(!m);
    CHECK(m.error().message.find("/nonexistent.gguf") != std::string::npos);
}

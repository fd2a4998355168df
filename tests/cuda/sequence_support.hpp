#pragma once
/// What tests of sequences on the emulated GPU share: drafts that are taken back, sequences that are saved and loaded.
#include <string_view>

#include "frugal/tensor/bytes.hpp"
#include "model_support.hpp"

namespace test {

inline bool names(const error& e, std::string_view what) { return e.message.find(what) != std::string::npos; }

/// Other tokens than these.
inline std::vector<std::int32_t> others(std::span<const std::int32_t> tokens, std::size_t vocabulary) {
    std::vector<std::int32_t> out(tokens.begin(), tokens.end());
    for (std::int32_t& token : out) token = (token + 7) % static_cast<std::int32_t>(vocabulary);
    return out;
}

/// The rows of tokens begin … of all logits.
inline std::vector<float> rows_of(const std::vector<float>& all, std::size_t width, std::size_t begin, std::size_t end) {
    return {all.begin() + static_cast<std::ptrdiff_t>(begin * width), all.begin() + static_cast<std::ptrdiff_t>(end * width)};
}

/// Drafts are taken back on both sides of the border of a block, those of one call and single ones, and the right tokens follow.
template <class Spec>
void check_rollback(const golden_case<Spec>& model, std::size_t count) {
    const machine guard;
    const std::size_t width = model.width;
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .batch_tokens = 4, .logit_rows = 64, .checkpoints = 6});
    const auto want = run(m, dev, model.first(count), {count});
    model.check(want);
    must(m.clear(dev));
    CHECK(m.can_rollback(0));
    CHECK(!m.can_rollback(1));
    const auto all = model.first(count);
    CHECK(same_bits(run(m, dev, all.first(7), {7}), rows_of(want, width, 0, 7)));
    const auto before = simt::runtime();
    const auto draft = others(all.subspan(7, 5), width);
    (void)run(m, dev, draft, {2, 1});  // 7 … 11: they complete the block that holds token 7
    CHECK(m.length() == 12);
    CHECK(m.can_rollback(6));
    CHECK(!m.can_rollback(7));
    auto waits = simt::runtime().synchronizations;
    must(m.rollback(dev, 2));
    must(m.rollback(dev, 3));
    CHECK(m.length() == 7);
    CHECK(m.can_rollback(1));
    CHECK(!m.can_rollback(2));
    must(m.rollback(dev, 1));
    CHECK(simt::runtime().synchronizations == waits);
    CHECK(same_bits(run(m, dev, all.subspan(6, 4), {1, 3}), rows_of(want, width, 6, 10)));
    (void)run(m, dev, others(all.subspan(10, 6), width), {6});  // more than go through the layers at once
    must(m.rollback(dev, 6));
    CHECK(same_bits(run(m, dev, all.subspan(10), {1}), rows_of(want, width, 10, count)));
    CHECK(simt::runtime().allocation_calls == before.allocation_calls);
    CHECK(simt::runtime().recordings == before.recordings);

    CHECK(m.rollback(dev, count + 1).error().code == errc::cannot_rollback);
    const auto refused = m.rollback(dev, 7);
    CHECK(refused.error().code == errc::cannot_rollback);
    CHECK(names(refused.error(), "checkpoints"));
    CHECK(m.length() == count);
}

/// A sequence goes to a decoder with other options, whatever that held, and on from there.
template <class Spec>
void check_saved(const golden_case<Spec>& model, std::size_t at, std::size_t count) {
    const machine guard;
    const std::size_t width = model.width;
    auto dev = must(gpu::open(0));
    auto from = model.create(dev, {.max_tokens = 64, .batch_tokens = 24, .logit_rows = 64});
    const auto want = run(from, dev, model.first(at), {at});
    byte_writer writer;
    must(from.save(dev, writer));
    const auto rest = run(from, dev, model.first(count).subspan(at), {1});

    auto dev2 = must(gpu::open(0));
    auto to = model.create(dev2, {.max_tokens = 48, .batch_tokens = 3, .logit_rows = 3, .checkpoints = 2});
    (void)run(to, dev2, others(model.first(4), width), {3});
    simt::fail_call("cudaMemcpyAsync", cudaErrorInvalidValue);
    CHECK(to.rollback(dev2, 1).error().code == errc::device_failed);
    const auto saved = [&] { return byte_reader(writer.bytes()); };
    auto reader = saved();
    simt::fail_call("cudaMemcpyAsync", cudaErrorInvalidValue, 3);
    CHECK(to.load(dev2, reader).error().code == errc::device_failed);
    const std::int32_t token = model.tokens[0];
    CHECK(names(to.step(dev2, {&token, 1}, {}).error(), "load()"));
    CHECK(names(to.rollback(dev2, 1).error(), "load()"));
    byte_writer nothing;
    CHECK(to.save(dev2, nothing).error().code == errc::invalid_argument);
    CHECK(nothing.bytes().empty());
    reader = saved();
    must(to.load(dev2, reader));
    CHECK(reader.remaining() == 0);
    CHECK(to.length() == at);
    CHECK(!to.can_rollback(1));
    CHECK(same_bits(run(to, dev2, model.first(count).subspan(at), {1, 2}), rest));
    must(to.rollback(dev2, 2));
    CHECK(same_bits(run(to, dev2, model.first(count).subspan(count - 2), {1}), rows_of(rest, width, count - 2 - at, count - at)));
    byte_writer again, first;
    must(to.save(dev2, again));
    must(from.save(dev, first));
    CHECK(std::equal(again.bytes().begin(), again.bytes().end(), first.bytes().begin(), first.bytes().end()));
}

/// A model of the attention layers alone, without n-gram embedding: nothing is recurrent.
template <class Spec>
auto attention_alone(const golden_case<Spec>& model, gpu& dev, const model::cuda_decoder_options& options) {
    auto weights = must(model::read_weights<Spec, file_formats>(model.golden.file, model.golden.sizes));
    model::config sizes = model.golden.sizes;
    for (std::size_t i = sizes.layers.size(); i-- != 0;) {
        if (sizes.layers[i] == model::layer_kind::attention) continue;
        const auto at = static_cast<std::ptrdiff_t>(i);
        sizes.layers.erase(sizes.layers.begin() + at);
        weights.layers.erase(weights.layers.begin() + at);
        if (!sizes.qsa_ratios.empty()) sizes.qsa_ratios.erase(sizes.qsa_ratios.begin() + at);
    }
    sizes.ngrams.clear();
    weights.modules.clear();
    return must(golden_case<Spec>::decoder_type::create(dev, sizes, weights, options));
}

}  // namespace test

// Sequences of Qwen4-Exp on the emulated GPU are saved and loaded; damaged bytes are refused.
#include <array>

#include "sequence_support.hpp"

using namespace frugal;
using namespace test;

TEST_CASE("Qwen4-Exp: a sequence saved in the middle of a block goes on in another decoder") {
    check_saved(golden_case<model::qwen4exp<4>>("models/qwen4_exp"), 18, 21);
}

TEST_CASE("damaged bytes are refused, and the sequence is as it was") {
    const machine guard;
    const golden_case<model::qwen4exp<4>> model("models/qwen4_exp");
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 16, .batch_tokens = 8, .logit_rows = 16});
    const auto want = run(m, dev, model.first(7), {7});
    byte_writer writer;
    must(m.save(dev, writer));
    const std::vector<std::byte> good(writer.bytes().begin(), writer.bytes().end());
    must(m.clear(dev));
    (void)run(m, dev, model.first(2), {2});
    const auto load = [&](std::span<const std::byte> bytes) {
        byte_reader reader(bytes);
        return m.load(dev, reader);
    };
    const auto up = simt::runtime().bytes_to_device;
    for (const std::size_t size : {std::size_t{0}, std::size_t{31}, std::size_t{32}, std::size_t{39}, good.size() - 1})
        CHECK(load(std::span(good).first(size)).error().code == errc::malformed_file);
    const auto changed = [&](std::size_t offset, std::uint64_t value) {
        auto bytes = good;
        std::memcpy(bytes.data() + offset, &value, sizeof(value));
        return load(bytes).error().code;
    };
    std::array<std::uint64_t, 5> header{};  // magic, model, precisions, length, bytes
    std::memcpy(header.data(), good.data(), sizeof(header));
    REQUIRE(header[3] == 7);
    REQUIRE(header[4] == good.size() - sizeof(header));
    CHECK(changed(0, header[0] + 1) == errc::malformed_file);
    CHECK(changed(8, header[1] + 1) == errc::shape_mismatch);
    CHECK(changed(16, header[2] + 1) == errc::shape_mismatch);
    CHECK(changed(24, 17) == errc::context_overflow);
    CHECK(changed(24, ~std::uint64_t{0}) == errc::context_overflow);
    CHECK(changed(24, 16) == errc::malformed_file);  // more bytes than there are
    CHECK(changed(24, 6) == errc::shape_mismatch);
    CHECK(changed(32, header[4] - 4) == errc::shape_mismatch);
    CHECK(changed(32, ~std::uint64_t{0}) == errc::shape_mismatch);
    // The n-gram modules' segments are the last but the positions of the open block's tokens: 3 of 12 bytes.
    const auto dims =
        layer::ngram_embedding<ops::norm_weight::plain>::make_dims(model.golden.sizes, model.golden.sizes.ngrams.size() - 1);
    const std::size_t tokens_at =
        good.size() - 3 * 12 - dims.conv_history() * dims.channels() * sizeof(float) - dims.hash.context() * sizeof(std::int64_t);
    std::int64_t token = -1;
    std::memcpy(&token, good.data() + tokens_at, sizeof(token));
    CHECK(token == model.tokens[7 - dims.hash.context()]);
    CHECK(changed(tokens_at, model.width) == errc::malformed_file);
    CHECK(changed(tokens_at, ~std::uint64_t{0}) == errc::malformed_file);
    CHECK(simt::runtime().bytes_to_device == up);
    CHECK(m.length() == 2);
    CHECK(same_bits(run(m, dev, model.first(7).subspan(2), {5}), rows_of(want, model.width, 2, 7)));
    must(load(good));
    CHECK(m.length() == 7);
    // Of another model.
    const golden_case<model::qwen35> dense("models/qwen3_5_dense");
    auto other = dense.create(dev, {.max_tokens = 16});
    byte_reader reader(good);
    CHECK(other.load(dev, reader).error().code == errc::shape_mismatch);
}

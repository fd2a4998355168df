#pragma once
/// Whole models on the emulated GPU: golden ones beside transformers' logits, quantised files beside the host's.
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "../model/model_support.hpp"
#include "frugal/model/cuda_decoder.hpp"
#include "simt/runtime.hpp"

namespace test {

using namespace frugal;

using file_formats = quant::list<quant::f32, quant::q4_k, quant::q6_k>;
#ifdef FRUGAL_TEST_CUDA_ARCHITECTURE  // natively: of the machine's GPU, such as 90
struct arch {
    static constexpr std::string_view name = "the kernels' architecture";
    static constexpr int major = FRUGAL_TEST_CUDA_ARCHITECTURE / 10, minor = FRUGAL_TEST_CUDA_ARCHITECTURE % 10;
};
#else
using arch = device::sm_90;
#endif
using gpu = device::cuda<arch, counting_cpu<isa::baseline>, device::f32_activations, file_formats>;
template <class Spec, class Convention>
using decoder = model::cuda_decoder<Spec, Convention, policies<gpu, file_formats, exact_selection>>;

/// Leaves the emulated machine as it was: nothing of a test stays allocated.
struct machine {
    machine() { simt::reset_runtime(); }
    machine(const machine&) = delete;
    machine& operator=(const machine&) = delete;
    ~machine() {
        CHECK(simt::runtime().allocations == 0);
        CHECK(simt::runtime().pinned == 0);
        CHECK(simt::runtime().streams == 0);
        CHECK(simt::runtime().graphs == 0);
        simt::reset_runtime();
    }
};

/// A golden model with its decoder type and what transformers says its logits are.
template <class Spec>
struct golden_case {
    using decoder_type = decoder<Spec, model::convention::hugging_face>;
    golden_model golden;
    std::vector<std::int32_t> tokens = golden.tokens();
    std::size_t width = golden.sizes.vocabulary;
    std::vector<float> want = [this] {
        const auto logits = golden.data.f32("io.logits");
        return std::vector<float>(logits.begin(), logits.end());
    }();

    explicit golden_case(const char* name) : golden(name) {}
    [[nodiscard]] result<decoder_type> try_create(gpu& dev, const model::cuda_decoder_options& options) const {
        return decoder_type::create(dev, golden.sizes, must(model::read_weights<Spec, file_formats>(golden.file, golden.sizes)),
                                    options);
    }
    [[nodiscard]] decoder_type create(gpu& dev, const model::cuda_decoder_options& options) const {
        return must(try_create(dev, options));
    }
    [[nodiscard]] std::span<const std::int32_t> first(std::size_t n) const { return std::span(tokens).first(n); }
    /// Checks rows of logits from token `begin` on.
    void check(const std::vector<float>& got, std::size_t begin = 0) const {
        const auto at = want.begin() + static_cast<std::ptrdiff_t>(begin * width);
        check_close(got, std::vector<float>(at, at + static_cast<std::ptrdiff_t>(got.size())), golden.data.tol("io.logits"),
                    "logits");
    }
};

/// Logits of all tokens, in calls of these sizes (the last one repeats).
template <class Decoder, class Device>
std::vector<float> run(Decoder& m, Device& dev, std::span<const std::int32_t> input, std::vector<std::size_t> pieces) {
    const std::size_t width = m.sizes().vocabulary;
    std::vector<float> out(input.size() * width);
    for (std::size_t begin = 0, i = 0; begin < input.size(); ++i) {
        const std::size_t n = std::min(pieces[std::min(i, pieces.size() - 1)], input.size() - begin);
        must(m.step(dev, input.subspan(begin, n), {out.data() + begin * width, n, width}));
        begin += n;
    }
    return out;
}

/// The first `count` tokens, most in one call, then token by token, as the reference was made. Then some again after clear(), cut
/// otherwise.
template <class Spec>
void check_golden(const golden_case<Spec>& model, std::size_t count) {
    const machine guard;
    auto dev = must(gpu::open(0));
    auto m = model.create(dev, {.max_tokens = 64, .batch_tokens = 40, .logit_rows = 64});
    const auto whole = run(m, dev, model.first(count), {count * 3 / 4, 1});
    model.check(whole);
    CHECK(m.length() == count);
    must(m.clear(dev));
    CHECK(m.length() == 0);
    const auto again = run(m, dev, model.first(7), {1, 2, 4});
    CHECK(same_bits(again, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(again.size())}));
}

/// Root of the mean square difference, relative to that of the wanted.
inline double relative(std::span<const float> got, std::span<const float> want) {
    REQUIRE(got.size() == want.size());
    double difference = 0, square = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
        difference += d * d;
        square += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    }
    return std::sqrt(difference / square);
}

/// The same weights, operators and precisions as on the host: only the order of additions differs, and the last bit of exp.
constexpr double rounding = 2e-6;

}  // namespace test

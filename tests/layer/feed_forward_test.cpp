#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "frugal/layer/dense_ffn.hpp"
#include "frugal/layer/moe.hpp"
#include "frugal/quant/formats.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace layer = frugal::layer;
namespace quant = frugal::quant;
using formats = quant::list<quant::f32, quant::q8_0>;
using test::as_rows;

namespace {

/// A reference case with its weights; `fused` takes gate and up from one stack, as Hugging Face stores them.
struct reference {
    test::golden file;
    std::size_t hidden, experts, width, shared_width;
    std::vector<float> router, gate_up, down, shared_gate, shared_gate_proj, shared_up, shared_down, x;
    std::vector<float> gate, up;  ///< the same weights as two stacks, as GGUF stores them
    layer::moe_dims dims;

    explicit reference(const std::string& name)
        : file(name),
          hidden(file.params().at("hidden_size")),
          experts(file.params().at("num_experts")),
          width(file.params().at("moe_intermediate")),
          shared_width(file.params().at("shared_intermediate")),
          router(file.f32("w.gate.weight")),
          gate_up(file.f32("w.experts.gate_up_proj")),
          down(file.f32("w.experts.down_proj")),
          shared_gate(file.f32("w.shared_expert_gate.weight")),
          shared_gate_proj(file.f32("w.shared_expert.gate_proj.weight")),
          shared_up(file.f32("w.shared_expert.up_proj.weight")),
          shared_down(file.f32("w.shared_expert.down_proj.weight")),
          x(file.f32("x")),
          dims{experts, file.params().at("top_k"), file.params().at("norm_topk_prob")} {
        const auto half = static_cast<std::ptrdiff_t>(width * hidden);
        for (auto at = gate_up.begin(); at != gate_up.end(); at += 2 * half) {
            gate.insert(gate.end(), at, at + half);
            up.insert(up.end(), at + half, at + 2 * half);
        }
    }
    [[nodiscard]] layer::moe_weights weights(bool fused, bool shared = true) const {
        layer::moe_weights out;
        out.router = test::f32_weights(router, hidden);
        if (fused) {
            out.gate = *layer::expert_stack::part(test::f32_weights(gate_up, hidden), experts, 0, width);
            out.up = *layer::expert_stack::part(test::f32_weights(gate_up, hidden), experts, width, width);
        } else {
            out.gate = *layer::expert_stack::whole(test::f32_weights(gate, hidden), experts);
            out.up = *layer::expert_stack::whole(test::f32_weights(up, hidden), experts);
        }
        out.down = *layer::expert_stack::whole(test::f32_weights(down, width), experts);
        if (shared) {
            out.shared_gate = test::f32_weights(shared_gate, hidden);
            out.shared_gate_proj = test::f32_weights(shared_gate_proj, hidden);
            out.shared_up = test::f32_weights(shared_up, hidden);
            out.shared_down = test::f32_weights(shared_down, shared_width);
        }
        return out;
    }
};

constexpr const char* cases[] = {"parts/moe_qwen3_5_moe", "parts/moe_qwen4_exp_norm", "parts/moe_qwen4_exp_nonorm"};

template <class Isa>
std::vector<float> run(std::size_t threads_count, const layer::moe_dims& dims, const layer::moe_weights& weights,
                       fg::matrix_view<const float> x) {
    test::threads threads(threads_count);
    fg::device::cpu<Isa> dev(threads);
    fg::workspace scratch;
    std::vector<float> y(x.rows() * x.cols(), -7);
    REQUIRE(layer::moe<formats>(dev, scratch, dims, weights, x, as_rows(y, x.cols())));
    return y;
}

/// Pages of which some must not be touched.
class guarded_bytes {
public:
    explicit guarded_bytes(std::size_t size)
        : size_(size), data_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        REQUIRE(data_ != MAP_FAILED);
    }
    ~guarded_bytes() { munmap(data_, size_); }
    guarded_bytes(const guarded_bytes&) = delete;
    guarded_bytes& operator=(const guarded_bytes&) = delete;
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
    void forbid(std::size_t offset, std::size_t size) const { REQUIRE(mprotect(data() + offset, size, PROT_NONE) == 0); }

private:
    std::size_t size_;
    void* data_;
};

}  // namespace

TEST_CASE("a mixture of experts equals the reference, from fused or separate stacks") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : cases) {
            const reference r(name);
            const auto x = as_rows(r.x, r.hidden);
            const auto separate = run<Isa>(1, r.dims, r.weights(false), x);
            test::check_close(separate, r.file.f32("y"), r.file.tol("y"), name);
            test::check_close(run<Isa>(1, r.dims, r.weights(false, false), x), r.file.f32("routed"), r.file.tol("routed"), name);
            CHECK(test::equal_bits(separate, run<Isa>(1, r.dims, r.weights(true), x)));
            for (const std::size_t count : {2u, 5u})
                CHECK(test::equal_bits(separate, run<Isa>(count, r.dims, r.weights(true), x)));
            // One matrix an expert, anywhere in memory and in any order.
            auto scattered = r.weights(false);
            std::vector<std::vector<float>> memory(r.experts);
            std::vector<quant::weight_view> matrices(r.experts);
            for (std::size_t e = r.experts; e-- > 0;) {
                const auto at = r.down.begin() + static_cast<std::ptrdiff_t>(e * r.hidden * r.width);
                memory[e].assign(at, at + static_cast<std::ptrdiff_t>(r.hidden * r.width));
                matrices[e] = test::f32_weights(memory[e], r.width);
            }
            scattered.down = *layer::expert_stack::separate(matrices);
            CHECK(test::equal_bits(separate, run<Isa>(1, r.dims, scattered, x)));
            matrices[3].rows -= 1;
            CHECK(layer::expert_stack::separate(matrices).error().code == fg::errc::shape_mismatch);
            // A shared expert without a gate of its own is added as it is.
            auto ungated = r.weights(true);
            ungated.shared_gate = {};
            const auto plain = run<Isa>(1, r.dims, ungated, x);
            const auto shared = r.file.f32("shared"), routed = r.file.f32("routed");
            for (std::size_t row = 0; row < x.rows(); ++row) {
                double gate = 0;
                for (std::size_t c = 0; c < r.hidden; ++c)
                    gate += static_cast<double>(x(row, c)) * static_cast<double>(r.shared_gate[c]);
                for (std::size_t c = 0; c < r.hidden; ++c) {
                    const std::size_t at = row * r.hidden + c;
                    const double want = static_cast<double>(routed[at]) + static_cast<double>(shared[at]) * (1 + std::exp(-gate));
                    CHECK(static_cast<double>(plain[at]) == doctest::Approx(want).epsilon(1e-4));
                }
            }
        }
    });
}

TEST_CASE("a row's bits do not depend on the other rows of the batch") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const reference r(cases[1]);
        const auto weights = r.weights(true);
        // More rows than one slice of scratch holds pairs for: 18 * 20 * 3 = 1080.
        std::vector<float> many;
        for (int i = 0; i < 20; ++i) many.insert(many.end(), r.x.begin(), r.x.end());
        const auto together = run<Isa>(2, r.dims, weights, as_rows(many, r.hidden));
        for (std::size_t row = 0; row < 18; ++row) {
            const auto alone = run<Isa>(1, r.dims, weights, as_rows(r.x, r.hidden).rows_range(row, 1));
            for (std::size_t copy = 0; copy < 20; ++copy)
                CHECK(std::equal(alone.begin(), alone.end(),
                                 together.begin() + static_cast<std::ptrdiff_t>((copy * 18 + row) * r.hidden)));
        }
        for (const std::size_t first : {1u, 7u}) {
            auto part = run<Isa>(1, r.dims, weights, as_rows(r.x, r.hidden).rows_range(0, first));
            const auto rest = run<Isa>(3, r.dims, weights, as_rows(r.x, r.hidden).rows_range(first, 18 - first));
            part.insert(part.end(), rest.begin(), rest.end());
            CHECK(std::equal(part.begin(), part.end(), together.begin()));
        }
    });
}

TEST_CASE("weights of experts that nobody chose are not touched, those of a chosen one are read once a batch") {
    // Expert e answers to feature e alone, so the input names the experts.
    constexpr std::size_t experts = 6, hidden = 32, width = 32, page = 4096, matrix = hidden * width * sizeof(float);
    static_assert(matrix == page);
    std::vector<float> router(experts * hidden);
    for (std::size_t e = 0; e < experts; ++e) router[e * hidden + e] = 8;
    const guarded_bytes memory(3 * experts * page);
    const auto numbers = test::normal_numbers(3 * experts * page / sizeof(float), 3, 0.2f);
    std::memcpy(memory.data(), numbers.data(), numbers.size() * sizeof(float));
    layer::moe_weights weights;
    weights.router = test::f32_weights(router, hidden);
    const auto stack = [&](std::size_t which) {
        return *layer::expert_stack::whole(
            {quant::f32::type, memory.data() + which * experts * page, experts * width, hidden, hidden * sizeof(float)}, experts);
    };
    weights.gate = stack(0);
    weights.up = stack(1);
    weights.down = stack(2);
    for (std::size_t which = 0; which < 3; ++which)
        for (const std::size_t e : {0u, 2u, 3u}) memory.forbid((which * experts + e) * page, page);
    std::vector<float> x(5 * hidden);
    for (std::size_t row = 0; row < 5; ++row) x[row * hidden + (row % 2 == 0 ? 1 : 4)] = 1, x[row * hidden + 5] = 0.5f;
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        test::threads threads(3);
        fg::device::cpu<Isa, fg::counters_on> dev(threads);
        fg::workspace scratch;
        std::vector<float> y(x.size());
        REQUIRE(layer::moe<formats>(dev, scratch, {experts, 2, true}, weights, as_rows(x, hidden), as_rows(y, hidden)));
        CHECK(std::any_of(y.begin(), y.end(), [](float v) { return v != 0; }));
        CHECK(dev.counters().read(fg::counter::weight_bytes_read) == weights.router.bytes() + 3 * 3 * matrix);
    });
}

TEST_CASE("C62 a router that has no finite answer is a returned error") {
    const reference r(cases[0]);
    test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        fg::workspace scratch;
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
            auto x = r.x;
            x[7 * r.hidden + 3] = bad;
            std::vector<float> y(x.size());
            const auto got =
                layer::moe<formats>(dev, scratch, r.dims, r.weights(true), as_rows(x, r.hidden), as_rows(y, r.hidden));
            if (bad == 3e38f && got) continue;  // large but finite inputs may have finite logits
            REQUIRE(!got);
            CHECK(got.error().code == fg::errc::not_finite);
            CHECK(got.error().message.find("row 7 ") != std::string::npos);
        }
    });
}

TEST_CASE("C15 no rows at all are no work") {
    const reference r(cases[0]);
    fg::device::cpu<fg::isa::baseline, fg::counters_on> dev;
    fg::workspace scratch;
    CHECK(layer::moe<formats>(dev, scratch, r.dims, r.weights(true), {nullptr, 0, r.hidden}, {nullptr, 0, r.hidden}));
    const layer::dense_ffn_weights dense{test::f32_weights(r.shared_gate_proj, r.hidden),
                                         test::f32_weights(r.shared_up, r.hidden),
                                         test::f32_weights(r.shared_down, r.shared_width)};
    CHECK(layer::dense_ffn<formats>(dev, scratch, dense, {nullptr, 0, r.hidden}, {nullptr, 0, r.hidden}));
    CHECK(dev.counters().read(fg::counter::weight_bytes_read) == 0);
}

TEST_CASE("a mixture of experts whose parts do not fit is refused") {
    const reference r(cases[0]);
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    std::vector<float> y(r.x.size());
    const auto code = [&](layer::moe_dims dims, const layer::moe_weights& weights) {
        const auto got = layer::moe<formats>(dev, scratch, dims, weights, as_rows(r.x, r.hidden), as_rows(y, r.hidden));
        REQUIRE(!got);
        return got.error().code;
    };
    auto dims = r.dims;
    dims.top_k = 0;
    CHECK(code(dims, r.weights(true)) == fg::errc::invalid_argument);
    dims.top_k = 13;
    CHECK(code(dims, r.weights(true)) == fg::errc::invalid_argument);
    dims = r.dims;
    dims.experts = 11;
    CHECK(code(dims, r.weights(true)) == fg::errc::shape_mismatch);
    auto w = r.weights(true);
    w.down.experts = 11;
    CHECK(code(r.dims, w) == fg::errc::shape_mismatch);
    w = r.weights(true);
    w.up.first.rows -= 1;
    CHECK(code(r.dims, w) == fg::errc::shape_mismatch);
    w = r.weights(true);
    w.shared_gate = w.router;
    CHECK(code(r.dims, w) == fg::errc::shape_mismatch);
    w = r.weights(true);
    w.shared_up.rows -= 1;
    CHECK(code(r.dims, w) == fg::errc::shape_mismatch);
    w = r.weights(true);
    w.down.first.type = quant::q4_k::type;
    CHECK(code(r.dims, w) == fg::errc::unsupported_format);
    CHECK(!layer::expert_stack::whole(w.router, 5));
    CHECK(!layer::expert_stack::whole(w.router, 0));
    CHECK(!layer::expert_stack::part(w.router, 12, 1, 1));
}

TEST_CASE("the dense feed-forward equals the reference's shared expert, for any threads and split") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const reference r(cases[0]);
        const layer::dense_ffn_weights weights{test::f32_weights(r.shared_gate_proj, r.hidden),
                                               test::f32_weights(r.shared_up, r.hidden),
                                               test::f32_weights(r.shared_down, r.shared_width)};
        const auto x = as_rows(r.x, r.hidden);
        std::vector<float> first;
        for (const std::size_t count : {1u, 4u}) {
            test::threads threads(count);
            fg::device::cpu<Isa> dev(threads);
            fg::workspace scratch;
            std::vector<float> y(r.x.size());
            REQUIRE(layer::dense_ffn<formats>(dev, scratch, weights, x, as_rows(y, r.hidden)));
            if (first.empty()) first = y;
            CHECK(test::equal_bits(y, first));
            auto in_place = r.x;
            REQUIRE(layer::dense_ffn<formats>(dev, scratch, weights, as_rows(in_place, r.hidden), as_rows(in_place, r.hidden)));
            CHECK(test::equal_bits(in_place, first));
            for (std::size_t row = 0; row < x.rows(); ++row) {
                std::vector<float> one(r.hidden);
                REQUIRE(layer::dense_ffn<formats>(dev, scratch, weights, x.rows_range(row, 1), as_rows(one, r.hidden)));
                CHECK(std::equal(one.begin(), one.end(), first.begin() + static_cast<std::ptrdiff_t>(row * r.hidden)));
            }
            auto gated = y;
            for (std::size_t row = 0; row < x.rows(); ++row) {
                double gate = 0;
                for (std::size_t c = 0; c < r.hidden; ++c)
                    gate += static_cast<double>(x(row, c)) * static_cast<double>(r.shared_gate[c]);
                for (std::size_t c = 0; c < r.hidden; ++c) {
                    float& value = gated[row * r.hidden + c];
                    value = static_cast<float>(static_cast<double>(value) / (1 + std::exp(-gate)));
                }
            }
            test::check_close(gated, r.file.f32("shared"), r.file.tol("shared"), "shared");
            auto narrow = weights;
            narrow.up.rows -= 1;
            CHECK(layer::dense_ffn<formats>(dev, scratch, narrow, x, as_rows(y, r.hidden)).error().code ==
                  fg::errc::shape_mismatch);
        }
    });
}

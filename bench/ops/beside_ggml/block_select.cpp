// The indexer of QSA for a decoded token: scores of all block keys and choice of the best 512. llama.cpp scores with f32 keys that
// its graph has made just before; here these are given, in f32 and in f16. What it needs to choose cells instead of blocks is
// left out.
#include "frugal/ops/block_select/block_select.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/workspace.hpp"
#include "operators.hpp"
#include "prepared_graph.hpp"

namespace bench {

namespace {

constexpr std::size_t heads = 4, dim = 128, top = 512;
using scalar = fg::bfloat16;

/// Keys in bf16, which the other types hold without loss but for the tiniest; `copies` exceed the last-level cache.
struct inputs {
    explicit inputs(std::size_t count)
        : blocks(count), copies(copies_beyond_cache(count * dim * sizeof(scalar))), q(normal(heads * dim, 1)) {
        for (const float each : normal(count * dim, 2)) keys.push_back(fg::to_bfloat16(each));
        for (std::size_t b = 0; b < blocks; ++b) {
            double score = 0;
            for (std::size_t h = 0; h < heads; ++h) {
                double dot = 0;
                for (std::size_t d = 0; d < dim; ++d)
                    dot += static_cast<double>(q[h * dim + d]) * static_cast<double>(fg::to_float(keys[b * dim + d]));
                score += std::max(0.0, dot);
            }
            scores.push_back(score);
        }
    }
    /// Scores of these blocks, the greatest first: two that are nearly equal may be chosen in either order.
    [[nodiscard]] std::vector<float> scores_of(const std::vector<std::uint32_t>& chosen) const {
        std::vector<float> out;
        for (const std::uint32_t block : chosen) out.push_back(block < blocks ? static_cast<float>(scores[block]) : 0.0f);
        std::sort(out.begin(), out.end(), std::greater<>());
        return out;
    }

    std::size_t blocks, copies;
    std::vector<float> q;
    std::vector<scalar, cache_aligned<scalar>> keys;
    std::vector<double> scores;
};

template <class Isa>
class our_selection {
public:
    explicit our_selection(std::shared_ptr<const inputs> in) : in_(std::move(in)), chosen_(top), keys_(in_->copies, in_->keys) {
        for (const auto& keys : keys_) chunks_.push_back(keys.data());
        for (const scalar* const& chunk : chunks_) views_.push_back({&chunk, 40, dim});
    }
    our_selection(const our_selection&) = delete;
    our_selection& operator=(const our_selection&) = delete;

    [[nodiscard]] fg::status run() {
        std::size_t count = 0;
        for (const auto& view : views_) {
            const fg::ops::block_row<scalar> row{&view, in_->blocks};
            FRUGAL_TRY(fg::ops::select_blocks<fg::device::cpu<Isa>, scalar>(device_, scratch_, as_matrix(in_->q, 1), heads,
                                                                            {&row, 1}, top, chosen_, {&count, 1}));
        }
        return {};
    }
    [[nodiscard]] std::vector<float> result() const { return in_->scores_of(chosen_); }

private:
    std::shared_ptr<const inputs> in_;
    fg::device::cpu<Isa> device_{executor(1)};
    fg::workspace scratch_;
    std::vector<std::uint32_t> chosen_;
    std::vector<std::vector<scalar, cache_aligned<scalar>>> keys_;
    std::vector<const scalar*> chunks_;
    std::vector<fg::ops::block_key_view<scalar>> views_;
};

/// The products with all keys, max(0, .), the sum over the heads, the best.
class peer_selection {
public:
    template <class Key>
    peer_selection(const peer::ggml& library, std::shared_ptr<const inputs> in, peer::ggml_type type, Key key)
        : in_(std::move(in)), calls_(in_->copies * sizeof(scalar) / sizeof(key(scalar{}))), graph_(library, 32 * calls_, 1) {
        std::vector<decltype(key(scalar{}))> keys;
        for (const scalar each : in_->keys) keys.push_back(key(each));
        const peer::ggml& g = graph_.g();
        const auto q = graph_.input({dim, heads}, in_->q);
        for (std::size_t i = 0; i < calls_; ++i) {
            const auto dots = g.ggml_mul_mat(graph_.context(), graph_.input(type, {dim, in_->blocks}, keys), q);
            const auto scores = g.ggml_relu(graph_.context(), dots);
            const std::size_t row = in_->blocks * sizeof(float);
            peer::ggml_tensor* sum = nullptr;
            for (std::size_t h = 0; h < heads; ++h) {
                const auto one = graph_.view(scores, in_->blocks, 1, 1, row, row, h * row);
                sum = sum != nullptr ? g.ggml_add(graph_.context(), sum, one) : one;
            }
            top_ = g.ggml_top_k(graph_.context(), sum, static_cast<int>(top));
            graph_.expand(top_);
        }
    }
    /// How often a run computes the operator.
    [[nodiscard]] std::size_t calls() const noexcept { return calls_; }
    /// Errors: out_of_memory.
    [[nodiscard]] fg::status allocate() { return graph_.allocate(top_, top); }
    [[nodiscard]] fg::status run() const { return graph_.run(); }
    [[nodiscard]] std::vector<float> result() const {
        std::vector<std::uint32_t> chosen;
        for (const float each : graph_.result()) chosen.push_back(std::bit_cast<std::uint32_t>(each));
        return in_->scores_of(chosen);
    }

private:
    std::shared_ptr<const inputs> in_;
    std::size_t calls_;
    peer::prepared_graph graph_;
    peer::ggml_tensor* top_ = nullptr;
};

fg::status measure(contests& all, std::string figure, std::size_t blocks) {
    const auto in = std::make_shared<const inputs>(blocks);
    contest out;
    out.figure = std::move(figure);
    out.op = "block_select, decode";
    out.format = "bf16";
    out.shape = fg::concat("1x", heads, 'x', dim, ", ", blocks);
    out.bound = bound::reading;
    out.cost = {static_cast<double>(in->keys.size() * sizeof(scalar)), 2.0 * static_cast<double>(heads * in->keys.size())};
    std::vector<std::uint32_t> every(blocks);
    for (std::size_t b = 0; b < blocks; ++b) every[b] = static_cast<std::uint32_t>(b);
    const std::vector<float> sorted = in->scores_of(every);
    out.want.assign(sorted.begin(), sorted.begin() + top);
    constexpr double tolerance = 1e-4;
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        out.enter(std::string(Isa::name), true, std::make_shared<our_selection<Isa>>(in), tolerance, in->copies);
    });
    if (all.peer() != nullptr) {
        const auto enter = [&](const char* name, peer::ggml_type type, auto key) -> fg::status {
            const auto theirs = std::make_shared<peer_selection>(*all.peer(), in, type, key);
            FRUGAL_TRY(theirs->allocate());
            out.enter(name, false, theirs, 1e-2, theirs->calls());
            return {};
        };
        FRUGAL_TRY(enter("mul_mat f32 … top_k", peer::f32, [](scalar key) { return fg::to_float(key); }));
        // Rounds the query to half precision.
        FRUGAL_TRY(enter("mul_mat f16 … top_k", peer::f16, [](scalar key) { return fg::to_half(fg::to_float(key)); }));
    }
    return all.hold(std::move(out));
}

}  // namespace

fg::status measure_block_select(contests& all) {
    // Blocks of four tokens: at 32768 and 131072 of them.
    FRUGAL_TRY(measure(all, "block_select.decode", 8192));
    return measure(all, "block_select.decode_131k", 32768);
}

}  // namespace bench

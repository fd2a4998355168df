// The indexer of QSA for a decoded token: scores of all block keys, in bf16 and in 8 bits, and choice of the best 512. llama.cpp
// scores with f32 keys that its graph has made just before; here these are given, in f32 and in f16. What it needs to choose cells
// instead of blocks is left out.
#include "frugal/ops/block_select/block_select.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/workspace.hpp"
#include "operators.hpp"
#include "prepared_graph.hpp"

namespace bench {

namespace {

constexpr std::size_t heads = 4, dim = 128, top = 512;

/// Block keys in one precision; `copies` exceed the last-level cache.
template <class Scalar>
struct inputs {
    static constexpr bool scaled = std::is_same_v<Scalar, std::int8_t>;

    explicit inputs(std::size_t count)
        : blocks(count),
          copies(copies_beyond_cache(count * key_bytes)),
          q(normal(heads * dim, 1)),
          keys(count * dim),
          scales(scaled ? count : 0),
          values(normal(count * dim, 2)) {
        for (std::size_t b = 0; b < blocks; ++b) {
            float scale = 1;
            if constexpr (scaled) scale = scales[b] = fg::ops::encode_block_key(&values[b * dim], dim, &keys[b * dim]);
            for (std::size_t i = b * dim; i < (b + 1) * dim; ++i) {
                if constexpr (!scaled) keys[i] = fg::to_bfloat16(values[i]);
                values[i] = scale * fg::to_float(keys[i]);
            }
            double score = 0;
            for (std::size_t h = 0; h < heads; ++h) {
                double dot = 0;
                for (std::size_t d = 0; d < dim; ++d)
                    dot += static_cast<double>(q[h * dim + d]) * static_cast<double>(values[b * dim + d]);
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

    static constexpr std::size_t key_bytes = dim * sizeof(Scalar) + (scaled ? sizeof(float) : 0);
    std::size_t blocks, copies;
    std::vector<float> q;
    std::vector<Scalar, cache_aligned<Scalar>> keys;
    std::vector<float> scales;
    std::vector<float> values;  ///< what the keys stand for
    std::vector<double> scores;
};

template <class Isa, class Scalar>
class our_selection {
public:
    explicit our_selection(std::shared_ptr<const inputs<Scalar>> in)
        : in_(std::move(in)), chosen_(top), keys_(in_->copies, in_->keys), scales_(in_->copies, in_->scales) {
        for (const auto& keys : keys_) chunks_.push_back(keys.data());
        for (const auto& scales : scales_) scale_chunks_.push_back(scales.data());
        for (std::size_t i = 0; i < chunks_.size(); ++i)
            if constexpr (inputs<Scalar>::scaled)
                views_.push_back({&chunks_[i], &scale_chunks_[i], 40, dim});
            else
                views_.push_back({&chunks_[i], 40, dim});
    }
    our_selection(const our_selection&) = delete;
    our_selection& operator=(const our_selection&) = delete;

    [[nodiscard]] fg::status run() {
        std::size_t count = 0;
        for (const auto& view : views_) {
            const fg::ops::block_row<Scalar> row{&view, in_->blocks};
            FRUGAL_TRY(fg::ops::select_blocks<fg::device::cpu<Isa>, Scalar>(device_, scratch_, as_matrix(in_->q, 1), {&row, 1},
                                                                            heads, top, chosen_, {&count, 1}));
        }
        return {};
    }
    [[nodiscard]] std::vector<float> result() const { return in_->scores_of(chosen_); }

private:
    std::shared_ptr<const inputs<Scalar>> in_;
    fg::device::cpu<Isa> device_{executor(1)};
    fg::workspace scratch_;
    std::vector<std::uint32_t> chosen_;
    std::vector<std::vector<Scalar, cache_aligned<Scalar>>> keys_;
    std::vector<std::vector<float>> scales_;
    std::vector<const Scalar*> chunks_;
    std::vector<const float*> scale_chunks_;
    std::vector<fg::ops::block_key_view<Scalar>> views_;
};

/// The products with all keys, max(0, .), the sum over the heads, the best.
template <class Scalar>
class peer_selection {
public:
    template <class Key>
    peer_selection(const peer::ggml& library, std::shared_ptr<const inputs<Scalar>> in, peer::ggml_type type, Key key)
        : in_(std::move(in)), calls_(calls_beyond_cache<decltype(key(0.0f))>()), graph_(library, 32 * calls_, 1) {
        std::vector<decltype(key(0.0f))> keys;
        for (const float each : in_->values) keys.push_back(key(each));
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
    template <class Key>
    [[nodiscard]] std::size_t calls_beyond_cache() const {
        return std::max<std::size_t>(1, in_->copies * inputs<Scalar>::key_bytes / (dim * sizeof(Key)));
    }
    std::shared_ptr<const inputs<Scalar>> in_;
    std::size_t calls_;
    peer::prepared_graph graph_;
    peer::ggml_tensor* top_ = nullptr;
};

template <class Scalar>
fg::status measure(contests& all, std::string figure, std::string precision, std::size_t blocks) {
    using keys = inputs<Scalar>;
    const auto in = std::make_shared<const keys>(blocks);
    contest out;
    out.figure = std::move(figure);
    out.op = "block_select, decode";
    out.format = std::move(precision);
    out.shape = fg::concat("1x", heads, 'x', dim, ", ", blocks);
    out.bound = bound::reading;
    out.cost = {static_cast<double>(blocks * keys::key_bytes), 2.0 * static_cast<double>(heads * in->keys.size())};
    std::vector<std::uint32_t> every(blocks);
    for (std::size_t b = 0; b < blocks; ++b) every[b] = static_cast<std::uint32_t>(b);
    const std::vector<float> sorted = in->scores_of(every);
    out.want.assign(sorted.begin(), sorted.begin() + top);
    constexpr double tolerance = 1e-4;
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        out.enter(std::string(Isa::name), true, std::make_shared<our_selection<Isa, Scalar>>(in), tolerance, in->copies);
    });
    if (all.peer() != nullptr) {
        const auto enter = [&](const char* name, peer::ggml_type type, auto key) -> fg::status {
            const auto theirs = std::make_shared<peer_selection<Scalar>>(*all.peer(), in, type, key);
            FRUGAL_TRY(theirs->allocate());
            out.enter(name, false, theirs, 1e-2, theirs->calls());
            return {};
        };
        FRUGAL_TRY(enter("mul_mat f32 … top_k", peer::f32, [](float key) { return key; }));
        // Rounds the query to half precision.
        FRUGAL_TRY(enter("mul_mat f16 … top_k", peer::f16, [](float key) { return fg::to_half(key); }));
    }
    return all.hold(std::move(out));
}

}  // namespace

fg::status measure_block_select(contests& all) {
    // Blocks of four tokens: at 32768 and 131072 of them.
    FRUGAL_TRY(measure<fg::bfloat16>(all, "block_select.decode", "bf16", 8192));
    FRUGAL_TRY(measure<fg::bfloat16>(all, "block_select.decode_131k", "bf16", 32768));
    FRUGAL_TRY(measure<std::int8_t>(all, "block_select.int8.decode", "int8", 8192));
    return measure<std::int8_t>(all, "block_select.int8.decode_131k", "int8", 32768);
}

}  // namespace bench

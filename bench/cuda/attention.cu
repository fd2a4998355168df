// Attention of Qwen3.8-Flash-Next's shape, keys and values in bfloat16: a decoded token over all of a context, the choice of
// blocks by QSA's indexer, a whole QSA layer (choice, list, attention), and a prefill by matrix units.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "frugal/ops/attention/attention_cuda.cuh"
#include "frugal/ops/attention/attention_tiles_cuda.cuh"
#include "frugal/ops/block_select/block_select_cuda.cuh"
#include "gpu.hpp"

namespace ops = frugal::ops;
using bench::array;
using frugal::bfloat16;

namespace {

constexpr std::size_t kv_heads = 2, heads = 24, dim = 256, width = kv_heads * dim, ratio = 4, top = 512, index_heads = 4,
                      index_dim = 128;
constexpr std::size_t tile = std::size_t{1} << 20;  ///< random numbers, again and again
constexpr std::size_t one_chunk = 40;               ///< a cache whose rows are in one piece

/// One sequence's cache on the device.
struct cache {
    array<bfloat16> keys, values, blocks;
    array<const bfloat16*> key_chunk, value_chunk, block_chunk;

    cache(std::size_t context, const std::vector<bfloat16>& numbers)
        : keys(context * width),
          values(context * width),
          blocks(context / ratio * index_dim),
          key_chunk(std::vector<const bfloat16*>{keys.data()}),
          value_chunk(std::vector<const bfloat16*>{values.data()}),
          block_chunk(std::vector<const bfloat16*>{blocks.data()}) {
        for (array<bfloat16>* to : {&keys, &values, &blocks})
            for (std::size_t at = 0; at < to->size(); at += tile)
                bench::must(cudaMemcpy(to->data() + at, numbers.data(), std::min(tile, to->size() - at) * sizeof(bfloat16),
                                       cudaMemcpyHostToDevice),
                            "copy to the device");
    }
};

class problem {
public:
    problem(bench::report& to, std::size_t context)
        : to_(to),
          context_(context),
          blocks_(context / ratio),
          q_(bench::normals(heads * dim, 6)),
          index_(bench::normals(index_heads * index_dim, 7)),
          q_device_(q_),
          index_device_(index_),
          y_(heads * dim),
          partial_(ops::cuda::split_partial(1, shape, context)),
          scores_(blocks_),
          candidates_(ops::cuda::select_candidates(1, blocks_, top)),
          chosen_(top),
          counts_(1),
          lists_(top * ratio + ratio - 1),
          complete_(std::vector{static_cast<std::uint32_t>(blocks_)}),
          seen_(std::vector{static_cast<std::uint32_t>(context)}) {
        const auto random = bench::normals(tile, 5);
        std::vector<bfloat16> numbers(tile);
        for (std::size_t i = 0; i < tile; ++i) {
            numbers[i] = frugal::to_bfloat16(random[i]);
            numbers_.push_back(static_cast<double>(frugal::to_float(numbers[i])));
        }
        std::size_t free = 0, total = 0;
        bench::must(cudaMemGetInfo(&free, &total), "ask for its memory");
        const double one = static_cast<double>(context * width * 2 + blocks_ * index_dim) * sizeof(bfloat16);
        const std::size_t wanted = to.copies(layer_bytes()),
                          room = static_cast<std::size_t>(0.8 * static_cast<double>(free) / one);
        fits = room != 0;
        if (room < wanted)
            std::printf("context %zu: room for %zu caches of %zu that exceed the GPU's cache\n", context, room, wanted);
        for (std::size_t i = 0; i < std::min(wanted, room); ++i) {
            caches_.emplace_back(context, numbers);
            ops::cuda::split_row<bfloat16> row;
            row.cache = {caches_.back().key_chunk.data(), caches_.back().value_chunk.data(), one_chunk, width};
            row.visible = static_cast<std::uint32_t>(context);
            all_.emplace_back(std::vector{row});
            gathered_.emplace_back(std::vector{row});
            ops::cuda::select_row<bfloat16> select;
            select.blocks = {caches_.back().block_chunk.data(), one_chunk, index_dim};
            select.complete = static_cast<std::uint32_t>(blocks_);
            select_.emplace_back(std::vector{select});
        }
    }

    void measure() {
        const std::string context = std::to_string(context_);
        attend(all_[0], context_);
        std::vector<std::uint32_t> tokens(context_);
        for (std::size_t t = 0; t < context_; ++t) tokens[t] = static_cast<std::uint32_t>(t);
        to_.add("attention/bf16/all/" + context, attends(tokens), {static_cast<double>(context_ * width) * 2 * sizeof(bfloat16)},
                [&](int i) { attend(all_[which(i)], context_); });
        choose(0);
        const bool chosen_right = chooses();
        to_.add("qsa/bf16/choose/" + context, chosen_right, {static_cast<double>(blocks_ * index_dim) * sizeof(bfloat16)},
                [&](int i) { choose(which(i)); });
        layer(0);
        tokens = lists_.to_host();
        tokens.resize(gathered_[0].to_host()[0].visible);
        to_.add("qsa/bf16/layer/" + context, chosen_right && tokens.size() == std::min(top, blocks_) * ratio && attends(tokens),
                {layer_bytes()}, [&](int i) { layer(which(i)); });
    }

    bool fits = true;

private:
    static constexpr ops::cuda::split_heads shape{heads, kv_heads, dim};

    /// What a layer cannot avoid: reading block keys, and keys and values of the chosen tokens.
    [[nodiscard]] double layer_bytes() const {
        return static_cast<double>(blocks_ * index_dim + std::min(top, blocks_) * ratio * width * 2) * sizeof(bfloat16);
    }
    [[nodiscard]] std::size_t which(int i) const { return static_cast<std::size_t>(i) % caches_.size(); }
    void attend(const array<ops::cuda::split_row<bfloat16>>& rows, std::size_t visible) {
        bench::must(ops::cuda::split_attention<bfloat16>({q_device_.data(), 1, heads * dim}, shape, 1.0f / 16, rows.data(),
                                                         visible, partial_.data(), {y_.data(), 1, heads * dim}, to_.queue),
                    "start attention");
    }
    void choose(std::size_t i) {
        bench::must(ops::cuda::select_blocks<bfloat16>({index_device_.data(), 1, index_.size()}, index_heads, select_[i].data(),
                                                       blocks_, top, scores_.data(), candidates_.data(), chosen_.data(),
                                                       counts_.data(), to_.queue),
                    "choose blocks");
    }
    void layer(std::size_t i) {
        choose(i);
        bench::must(ops::cuda::attend_chosen<bfloat16>(chosen_.data(), counts_.data(), top, ratio, complete_.data(), seen_.data(),
                                                       1, lists_.data(), gathered_[i].data(), to_.queue),
                    "list tokens");
        attend(gathered_[i], top * ratio + ratio - 1);
    }

    [[nodiscard]] double number(std::size_t i) const { return numbers_[i % tile]; }
    /// Whether y is a softmax over these tokens, for the first and the last head.
    [[nodiscard]] bool attends(const std::vector<std::uint32_t>& tokens) const {
        const auto got = y_.to_host();
        std::vector<double> want;
        for (const std::size_t h : {std::size_t{0}, heads - 1}) {
            const std::size_t offset = h / (heads / kv_heads) * dim;
            std::vector<double> weights;
            double greatest = -1e300, sum = 0;
            for (const std::uint32_t t : tokens) {
                double dot = 0;
                for (std::size_t d = 0; d < dim; ++d)
                    dot += static_cast<double>(q_[h * dim + d]) * number(t * width + offset + d);
                weights.push_back(dot / 16);
                greatest = std::max(greatest, weights.back());
            }
            for (double& weight : weights) sum += weight = std::exp(weight - greatest);
            std::vector<double> out(dim);
            for (std::size_t i = 0; i < tokens.size(); ++i)
                for (std::size_t d = 0; d < dim; ++d) out[d] += weights[i] / sum * number(tokens[i] * width + offset + d);
            want.insert(want.end(), out.begin(), out.end());
        }
        std::vector<float> both(got.begin(), got.begin() + dim);
        both.insert(both.end(), got.end() - dim, got.end());
        return bench::relative(both, want) < 1e-4;
    }
    /// Whether the chosen blocks are the best but for ties within rounding.
    [[nodiscard]] bool chooses() const {
        const std::size_t wanted = std::min(top, blocks_);
        const auto got = chosen_.to_host();
        if (counts_.to_host()[0] != wanted) return false;
        std::vector<double> score(blocks_);
        for (std::size_t b = 0; b < blocks_; ++b) {
            if (b * index_dim >= tile) {
                score[b] = score[b - tile / index_dim];
                continue;
            }
            for (std::size_t h = 0; h < index_heads; ++h) {
                double dot = 0;
                for (std::size_t d = 0; d < index_dim; ++d)
                    dot += static_cast<double>(index_[h * index_dim + d]) * number(b * index_dim + d);
                score[b] += std::max(dot, 0.0);
            }
        }
        auto sorted = score;
        std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(wanted - 1), sorted.end(),
                         std::greater<>());
        const double least = sorted[wanted - 1], rounding = 1e-4 * std::abs(least);
        std::vector<bool> taken(blocks_);
        for (std::size_t i = 0; i < wanted; ++i) {
            if (got[i] >= blocks_ || taken[got[i]] || score[got[i]] < least - rounding) return false;
            taken[got[i]] = true;
        }
        for (std::size_t b = 0; b < blocks_; ++b)
            if (!taken[b] && score[b] > least + rounding) return false;
        return true;
    }

    bench::report& to_;
    std::size_t context_, blocks_;
    std::vector<double> numbers_;
    std::vector<float> q_, index_;
    array<float> q_device_, index_device_, y_, partial_, scores_;
    array<std::uint32_t> candidates_, chosen_, counts_, lists_, complete_, seen_;
    std::vector<cache> caches_;
    std::vector<array<ops::cuda::split_row<bfloat16>>> all_, gathered_;
    std::vector<array<ops::cuda::select_row<bfloat16>>> select_;
};

/// 512 queries behind so many tokens that they all see.
void prefill(bench::report& to, std::size_t before) {
    constexpr std::size_t queries = 512;
    const std::size_t context = before + queries;
    std::vector<bfloat16> numbers(tile);
    const auto random = bench::normals(tile, 5);
    for (std::size_t i = 0; i < tile; ++i) numbers[i] = frugal::to_bfloat16(random[i]);
    const cache of(context, numbers);
    auto q = bench::normals(queries * heads * dim, 8);
    for (float& x : q) x = frugal::to_float(frugal::to_bfloat16(x));
    std::vector<std::uint32_t> seen(queries);
    double pairs = 0;
    for (std::size_t t = 0; t < queries; ++t) pairs += seen[t] = static_cast<std::uint32_t>(before + t + 1);
    const array<float> q_device(q), y(q.size());
    const array<std::uint32_t> visible(seen);
    const auto run = [&](int) {
        bench::must(ops::cuda::tile_attention({q_device.data(), queries, heads * dim}, {heads, kv_heads, dim}, 1.0f / 16,
                                              {of.key_chunk.data(), of.value_chunk.data(), one_chunk, width}, visible.data(),
                                              {y.data(), queries, heads * dim}, to.queue),
                    "start attention");
    };
    run(0);
    const auto all = y.to_host();
    std::vector<float> got;
    std::vector<double> want;
    const auto number = [&](std::size_t i) { return static_cast<double>(frugal::to_float(numbers[i % tile])); };
    for (const std::size_t t : {std::size_t{0}, queries - 1}) {
        const std::size_t h = t == 0 ? 0 : heads - 1, offset = h / (heads / kv_heads) * dim, at = (t * heads + h) * dim;
        std::vector<double> weights(seen[t]), out(dim);
        double sum = 0, greatest = -1e300;
        for (std::size_t k = 0; k < weights.size(); ++k) {
            for (std::size_t d = 0; d < dim; ++d)
                weights[k] += static_cast<double>(q[at + d]) * number(k * width + offset + d) / 16;
            greatest = std::max(greatest, weights[k]);
        }
        for (double& weight : weights) sum += weight = std::exp(weight - greatest);
        for (std::size_t k = 0; k < weights.size(); ++k)
            for (std::size_t d = 0; d < dim; ++d) out[d] += weights[k] / sum * number(k * width + offset + d);
        want.insert(want.end(), out.begin(), out.end());
        got.insert(got.end(), all.begin() + static_cast<std::ptrdiff_t>(at), all.begin() + static_cast<std::ptrdiff_t>(at + dim));
    }
    to.add("attention/bf16/tiles/512x" + std::to_string(context), bench::relative(got, want) < 1e-2,
           {0, 4.0 * static_cast<double>(heads * dim) * pairs, true}, run);
}

}  // namespace

void bench::attention(report& to) {
    prefill(to, 0);
    prefill(to, 32256);
    for (const std::size_t context : {std::size_t{32768}, std::size_t{131072}, std::size_t{262144}, std::size_t{1048576}}) {
        problem p(to, context);
        if (p.fits) p.measure();
    }
    const double short_one = to.microseconds_of("qsa/bf16/layer/32768"), long_one = to.microseconds_of("qsa/bf16/layer/1048576");
    if (short_one > 0 && long_one > 0) std::printf("figure qsa.bf16.layer.1048576_over_32768 %.2f\n", long_one / short_one);
}

// What the QSA inputs of an engine's cache cost the host, by policy: twelve QSA layers of ratio 4 over one long sequence, decoded
// token by token and prefilled in batches of 512.
//
// per_layer fills twelve sets in full for every batch, shared one, memoised one unless the same batch is evaluated again,
// incremental changes what the tokens changed. The first three bring the bias of llama.cpp's graph (one value a block and
// token); `none` shows them without, as the incremental one has it. Placing the tokens counts: the changes are noted there.
// At every step the tensors of all four are compared byte for byte.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/core/counters.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/engine/input_sets.hpp"

namespace bench {

namespace {

namespace reuse = fg::reuse;

constexpr std::array<std::size_t, 12> ratios = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
constexpr std::size_t k32 = 32768, k131 = 131072, k176 = 180224, k229 = 229376, million = 1 << 20, ubatch_tokens = 512;
constexpr reuse::sequence_id sequence{0};

/// A cache whose first cells hold one sequence of text.
class text_cache {
public:
    explicit text_cache(std::size_t size) : held_(reuse::cells::create(1, size, 1).value()) { sequences_.add(sequence); }

    [[nodiscard]] const reuse::cells& held() const noexcept { return held_; }
    [[nodiscard]] std::size_t length() const noexcept { return held_.tokens(sequence).size(); }
    [[nodiscard]] fg::status place(std::size_t tokens) {
        placed_.clear();
        positions_.clear();
        cells_.clear();
        for (std::size_t t = length(), end = t + tokens; t < end; ++t) {
            const auto at = static_cast<std::int32_t>(t);
            positions_.push_back({at, at, at});
            cells_.emplace_back(t);
            placed_.push_back({reuse::stream_id{}, reuse::cell_index(t), positions_.back(), sequences_});
        }
        ids_.assign(tokens, sequence);
        return held_.place(placed_);
    }
    [[nodiscard]] fg::status take_back(std::size_t tokens) { return held_.rollback(sequence, tokens); }
    /// What was placed last.
    [[nodiscard]] reuse::ubatch batch() const {
        return {positions_, ids_, cells_, 1, reuse::padded_window(held_, reuse::stream_id{}, 256), 1};
    }

private:
    reuse::cells held_;
    reuse::sequence_set sequences_;
    std::vector<reuse::placed_cell> placed_;
    std::vector<reuse::rope_position> positions_;
    std::vector<reuse::sequence_id> ids_;
    std::vector<reuse::cell_index> cells_;
};

struct result_line {
    std::string_view policy;
    std::string_view bias;
    std::size_t length = 0, tokens = 0;
    double seconds = 0;                                   // of a batch, median
    double builds = 0, updates = 0, hits = 0, again = 0;  // of a batch; hits where it was evaluated again
    std::size_t bytes = 0;
};

/// Bytes of the inputs for one batch behind `length` tokens, in a cache that has room for no more.
template <class Shared, class Bias>
fg::result<std::size_t> bytes_of(std::size_t length) {
    text_cache cache(length + ubatch_tokens);
    FRUGAL_TRY(cache.place(length));
    FRUGAL_TRY_ASSIGN(auto sets, (reuse::engine_input_sets<ratios, Shared, reuse::causality::causal, Bias>::create(
                                     cache.held(), ubatch_tokens)));
    FRUGAL_TRY(cache.place(ubatch_tokens));
    fg::counters_off none;
    FRUGAL_TRY(sets.fill(cache.held(), cache.batch(), none));
    return sets.bytes();
}

/// Batches between two looks at the clock: reading it takes as long as what `incremental` does for a token.
constexpr int together(std::size_t tokens, int batches) { return tokens == 1 && batches >= 100 ? 50 : 1; }

/// Runs `batches` batches of `tokens` tokens; the first ones are not timed. Leaves the cache as it was.
template <class Shared, class Bias>
fg::result<result_line> measure(text_cache& cache, std::size_t tokens, int batches) {
    using sets_type = reuse::engine_input_sets<ratios, Shared, reuse::causality::causal, Bias>;
    FRUGAL_TRY_ASSIGN(auto sets, sets_type::create(cache.held(), tokens));
    result_line out{Shared::name, Bias::name, cache.length(), tokens};
    std::vector<double> seconds;
    const std::size_t before = cache.length();
    const auto per_batch = [&](std::uint64_t n) { return static_cast<double>(n) / batches; };
    fg::counters_on counters;
    const int step = together(tokens, batches);
    for (int batch = -step; batch < batches; batch += step) {
        if (batch == 0) counters.reset();
        const double start = measured_seconds();
        for (int i = 0; i < step; ++i) {
            FRUGAL_TRY(cache.place(tokens));
            FRUGAL_TRY(sets.fill(cache.held(), cache.batch(), counters));
        }
        if (batch >= 0) seconds.push_back((measured_seconds() - start) / step);
    }
    out.builds = per_batch(counters.read(fg::counter::layout_builds));
    out.updates = per_batch(counters.read(fg::counter::layout_updates));
    out.hits = per_batch(counters.read(fg::counter::layout_hits));
    counters.reset();
    FRUGAL_TRY(sets.fill(cache.held(), cache.batch(), counters));
    out.again = static_cast<double>(counters.read(fg::counter::layout_hits));
    out.seconds = median(seconds);
    out.bytes = sets.bytes();
    FRUGAL_TRY(cache.take_back(cache.length() - before));
    return out;
}

template <class Bias>
bool same_tensors(auto& a, auto& b) {
    const auto equal = [](const auto& x, const auto& y) {
        return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size_bytes()) == 0;
    };
    bool same = equal(a.k_idxs(), b.k_idxs()) && equal(a.cell_blk(), b.cell_blk()) && equal(a.blk_cells(), b.blk_cells()) &&
                equal(a.blk_pos(), b.blk_pos());
    if constexpr (Bias::form == reuse::bias_form::none)
        same = same && equal(a.views(), b.views());
    else
        same = same && a.bias_slices() == 1 && equal(a.bias().values, b.bias().values);
    return same;
}

/// Whether the tensors of every layer are the same under all four policies, through decoding, a batch, taking back and going on.
template <class Bias>
fg::result<bool> compare_policies(text_cache& cache) {
    const auto make = [&]<class Shared>(fg::type_tag<Shared>) {
        return reuse::engine_input_sets<ratios, Shared, reuse::causality::causal, Bias>::create(cache.held(), ubatch_tokens)
            .value();
    };
    auto per_layer = make(fg::type_tag<reuse::per_layer>{});
    auto shared = make(fg::type_tag<reuse::shared>{});
    auto memoised = make(fg::type_tag<reuse::memoised>{});
    auto incremental = make(fg::type_tag<reuse::incremental>{});
    fg::counters_off none;
    bool same = true;
    const std::size_t before = cache.length();
    for (int step = 0; step < 60; ++step) {
        if (step % 10 == 9) FRUGAL_TRY(cache.take_back(step % 4 + 1u));
        FRUGAL_TRY(cache.place(step % 20 == 5 ? 300 : 1));
        FRUGAL_TRY(per_layer.fill(cache.held(), cache.batch(), none));
        FRUGAL_TRY(shared.fill(cache.held(), cache.batch(), none));
        FRUGAL_TRY(memoised.fill(cache.held(), cache.batch(), none));
        FRUGAL_TRY(incremental.fill(cache.held(), cache.batch(), none));
        [&]<std::size_t... Layer>(std::index_sequence<Layer...>) {
            const auto layer = [&](auto& wanted, auto& a, auto& b, auto& c) {
                return same_tensors<Bias>(wanted, a) && same_tensors<Bias>(wanted, b) && same_tensors<Bias>(wanted, c);
            };
            same = same && (layer(per_layer.template of_layer<Layer>(), shared.template of_layer<Layer>(),
                                  memoised.template of_layer<Layer>(), incremental.template of_layer<Layer>()) &&
                            ...);
        }
        (std::make_index_sequence<ratios.size()>{});
    }
    FRUGAL_TRY(cache.take_back(cache.length() - before));
    return same;
}

void print(const std::vector<result_line>& lines) {
    std::printf("%-12s %-10s %9s %6s %12s %8s %8s %6s %11s %12s\n", "policy", "bias", "tokens", "new", "ms a batch", "fills",
                "updates", "hits", "hits again", "MiB");
    for (const result_line& l : lines)
        std::printf("%-12s %-10s %9zu %6zu %12.4g %8.3g %8.3g %6.3g %11.3g %12.5g\n", std::string(l.policy).c_str(),
                    std::string(l.bias).c_str(), l.length, l.tokens, l.seconds * 1e3, l.builds, l.updates, l.hits, l.again,
                    static_cast<double>(l.bytes) / 1048576);
    std::printf("hits again: of the same batch evaluated once more\n");
}

json as_json(const std::vector<result_line>& lines) {
    json out{{"context", context(1)}, {"shared_inputs", json::array()}};
    for (const result_line& l : lines)
        out["shared_inputs"].push_back({{"policy", l.policy},
                                        {"bias", l.bias},
                                        {"length", l.length},
                                        {"tokens", l.tokens},
                                        {"ms", l.seconds * 1e3},
                                        {"bytes", l.bytes}});
    return out;
}

fg::status run(json& out) {
    using no_limit = reuse::bias_block<std::size_t{8} << 30>;
    using block = reuse::bias_block<>;
    using none = reuse::bias_none;
    std::vector<result_line> lines;
    bool identical = true;
    for (const std::size_t length : {k32, k131, k176, k229, million}) {
        std::fprintf(stderr, "%zu tokens\n", length);
        text_cache cache(length + 32768);
        FRUGAL_TRY(cache.place(length));
        if (length <= k131) {
            FRUGAL_TRY_ASSIGN(const bool with, compare_policies<no_limit>(cache));
            FRUGAL_TRY_ASSIGN(const bool without, compare_policies<none>(cache));
            identical = identical && with && without;
        }
        const auto both = [&]<class Shared, class Bias>(fg::type_tag<Shared>, fg::type_tag<Bias>, int decode) -> fg::status {
            FRUGAL_TRY_ASSIGN(const auto one, (measure<Shared, Bias>(cache, 1, decode)));
            lines.push_back(one);
            FRUGAL_TRY_ASSIGN(const auto many, (measure<Shared, Bias>(cache, ubatch_tokens,
                                                                      decode > 100        ? 20
                                                                      : length == million ? 1
                                                                                          : 3)));
            lines.push_back(many);
            return {};
        };
        FRUGAL_TRY(both(fg::type_tag<reuse::per_layer>{}, fg::type_tag<block>{}, 4));
        FRUGAL_TRY(both(fg::type_tag<reuse::shared>{}, fg::type_tag<block>{}, 8));
        FRUGAL_TRY(both(fg::type_tag<reuse::memoised>{}, fg::type_tag<block>{}, 8));
        FRUGAL_TRY(both(fg::type_tag<reuse::shared>{}, fg::type_tag<none>{}, 8));
        FRUGAL_TRY(both(fg::type_tag<reuse::incremental>{}, fg::type_tag<none>{}, 1000));
    }
    print(lines);
    out = as_json(lines);

    const auto of = [&](std::string_view policy, std::string_view bias, std::size_t length,
                        std::size_t tokens) -> const result_line& {
        return *std::find_if(lines.begin(), lines.end(), [&](const result_line& l) {
            return l.policy == policy && l.bias == bias && l.length == length && l.tokens == tokens;
        });
    };
    const auto ratio = [&](std::string_view bias, std::size_t length, std::size_t tokens) {
        return of("shared", bias, length, tokens).seconds / of("incremental", none::name, length, tokens).seconds;
    };
    const auto figure = [](const char* name, double value) { std::printf("figure shared_inputs.%s %.6g\n", name, value); };
    figure("fills_per_token", of("incremental", none::name, k131, 1).builds);
    figure("fills_per_ubatch", of("incremental", none::name, k131, ubatch_tokens).builds);
    figure("fills_per_token_shared", of("shared", block::name, k131, 1).builds);
    figure("fills_per_token_per_layer", of("per_layer", block::name, k131, 1).builds);
    figure("memo_hits_decode", of("memoised", block::name, k131, 1).hits);
    figure("memo_hits_again", of("memoised", block::name, k131, 1).again);
    figure("host_ratio_131k", ratio(block::name, k131, 1));
    figure("host_ratio_131k_same_bias", ratio(none::name, k131, 1));
    figure("host_ratio_131k_ubatch", ratio(block::name, k131, ubatch_tokens));
    figure("host_growth_million_over_32k",
           of("incremental", none::name, million, 1).seconds / of("incremental", none::name, k32, 1).seconds);
    FRUGAL_TRY_ASSIGN(const std::size_t bytes, (bytes_of<reuse::incremental, none>(k176)));
    FRUGAL_TRY_ASSIGN(const std::size_t bytes_shared, (bytes_of<reuse::shared, block>(k176)));
    FRUGAL_TRY_ASSIGN(const std::size_t bytes_cell, (bytes_of<reuse::shared, reuse::bias_cell<std::size_t{8} << 30>>(k176)));
    figure("input_bytes_176k", static_cast<double>(bytes));
    figure("input_bytes_176k_shared", static_cast<double>(bytes_shared));
    figure("input_bytes_176k_shared_bias_cell", static_cast<double>(bytes_cell));
    figure("results_identical", identical ? 1 : 0);
    return identical ? fg::status{} : fg::status(fg::fail(fg::errc::invalid_argument, "the policies' tensors differ"));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("shared_inputs", argc, argv, bench::run); }

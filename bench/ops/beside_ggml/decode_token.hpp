#pragma once
// What a decoded token is made of, to tell an operator's share of it from the times of the operators.
#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "contest.hpp"

namespace bench {

/// How often a decoded token runs an operator that was measured, by the name of its figures.
struct part_of_token {
    std::string_view figure;
    double count;
};

/// Bytes of a product that is measured: 6144 x 2048 weights of 4.5 bits. Products count by their bytes.
inline constexpr double product_bytes = 6144.0 * 2048 * 4.5 / 8;
constexpr double q4_k_products(double weights) { return weights * 4.5 / 8 / product_bytes; }

/// The shape of Qwen3.5-2B at 32768 tokens: 24 layers of which 18 are Gated DeltaNet, 2048 wide, attention of 8 heads over 2,
/// feed-forward 6144, weights in q4_k, the head in q6_k. Attention and RoPE are measured with 24 heads, and count by the heads.
namespace qwen35_token {
inline constexpr double hidden = 2048, gdn = 18, full = 6, layers = gdn + full;
inline constexpr double gdn_weights = hidden * (8192 + 4096 + 64 + 4096), full_weights = hidden * (2 * 2048 + 2 * 512 + 2048),
                        ffn_weights = hidden * 3 * 6144;
inline constexpr part_of_token parts[] = {
    {"matvec.q4_k", q4_k_products(gdn* gdn_weights + full * full_weights + layers * ffn_weights)},
    {"matvec.q6_k", 248320.0 / 6144},
    {"gdn.decode", gdn},
    {"attention.decode", full * 8 / 24},
    {"rms_norm", 2 * layers + 1 + full * 10 * 256 / 2048},  // those of queries and keys besides
    {"gated_rms_norm", gdn},
    {"l2_norm", gdn},
    {"rope", full * 10 / 26},
    {"swiglu", layers},
    {"add", 2 * layers},
    {"conv1d_decode", gdn},
    {"embedding", 1},
    {"sampling.top_k", 1},
};
}  // namespace qwen35_token

/// The shape of Qwen3.8-Flash-Next at 32768 tokens: 48 layers of which 36 are Gated DeltaNet, 2560 wide, 10 of 512 experts and a
/// shared one of 640, four residual streams with gates of rank 320. Weights in q4_k, the head in q6_k, the router in f32, the
/// indexer in bf16. Operators that are measured at another size count by their elements; its n-grams' gate is left out.
namespace qwen4exp_token {
inline constexpr double hidden = 2560, gdn = 36, qsa = 12, layers = gdn + qsa, width = 4 * hidden;
inline constexpr double gdn_weights = hidden * (10240 + 6144 + 96 + 6144), qsa_weights = hidden * (2 * 6144 + 2 * 512 + 6144),
                        expert_weights = hidden * 3 * 640 * 11, mix_weights = width * (320 + 320 + 4),
                        indexer_weights = hidden * 640, router_weights = hidden * 512;
inline constexpr part_of_token parts[] = {
    {"matvec.q4_k", q4_k_products(gdn* gdn_weights + qsa * qsa_weights + layers * (expert_weights + 2 * mix_weights) +
                                  qsa * indexer_weights * 16 / 4.5 + layers * router_weights * 32 / 4.5)},
    {"matvec.q6_k", 248320.0 * hidden / (6144.0 * 2048)},
    {"gdn.decode", gdn * 48 / 32},
    {"attention.decode", qsa * 2051 / 32768},
    {"block_select.decode", qsa},
    {"rms_norm", qsa*(26 * 256 + 5 * 128) / 2048},
    {"gated_rms_norm", gdn * 48 / 32},
    {"l2_norm", gdn},
    {"rope", qsa*(26 + 5) / 26},
    {"swiglu", layers * 11 * 640 / 6144},
    {"conv1d_decode", gdn * 10240 / 8192},
    {"router.512", layers},
    {"hyper_connection.norm", 2 * layers + 1},
    {"hyper_connection.silu", 2 * layers + 1},
    {"hyper_connection.mean", 2 * layers + 1},
    {"hyper_connection.inject", 2 * layers},
    {"embedding", hidden / 2048},
    {"embedding.ngram", 1},
    {"sampling.top_k", 1},
};
}  // namespace qwen4exp_token

/// Fills token_share of what ran with one thread in the most able instruction set, if every part of `token` was measured: the
/// greatest share of the tokens that this is called for.
inline void add_token_shares(contests& all, std::string_view token, std::span<const part_of_token> parts) {
    std::vector<std::pair<standing*, double>> found;
    double total = 0;
    for (const part_of_token& part : parts) {
        standing* last = nullptr;  // the most able
        for (standing& each : all.standings())
            if (each.figure == part.figure && each.threads == 1) last = &each;
        if (last == nullptr) return;
        found.emplace_back(last, last->ours * part.count);
        total += last->ours * part.count;
    }
    for (const auto& [part, seconds] : found)
        if (seconds / total > part->token_share) {
            part->token_share = seconds / total;
            part->token = token;
        }
}

/// The same for all tokens.
inline void add_token_shares(contests& all) {
    add_token_shares(all, "Qwen3.5", qwen35_token::parts);
    add_token_shares(all, "Qwen4-Exp", qwen4exp_token::parts);
}

}  // namespace bench

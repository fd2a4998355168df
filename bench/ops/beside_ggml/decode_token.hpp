#pragma once
// What a decoded token is made of, to tell an operator's share of it from the times of the operators.
#include <cstddef>
#include <string_view>

#include "contest.hpp"

namespace bench {

/// How often a decoded token runs an operator that was measured, by the name of its figures. The model: 24 layers of which 18 are
/// Gated DeltaNet and 6 attend to 32768 tokens, 2048 wide, feed-forward 6144, weights in q4_k (the shape of Qwen3.5-2B, without
/// embedding and head). The router counts as if every layer had one.
struct part_of_token {
    std::string_view figure;
    double count;
};
inline constexpr double gdn_layers = 18, full_layers = 6, all_layers = gdn_layers + full_layers;
/// Of a layer: the products' weights over those of one product that is measured (6144 x 2048).
inline constexpr double ffn_products = 3, gdn_products = (8192 + 4096 + 64 + 4096) / 6144.0,
                        full_products = (2 * 6144 + 2 * 512 + 6144) / 6144.0;
inline constexpr part_of_token decode_token[] = {
    {"matvec.q4_k", all_layers* ffn_products + gdn_layers* gdn_products + full_layers* full_products},
    {"gdn.decode", gdn_layers},
    {"attention.decode", full_layers},
    {"rms_norm", 2 * all_layers + 1},
    {"gated_rms_norm", gdn_layers},
    {"l2_norm", gdn_layers},
    {"rope", full_layers},
    {"swiglu", all_layers},
    {"add", 2 * all_layers},
    {"conv1d_decode", gdn_layers},
    {"router", all_layers},
};

/// Fills standing::token_share of what ran with one thread in the most able instruction set, if every part was measured.
inline void add_token_shares(contests& all) {
    std::vector<std::pair<standing*, double>> parts;
    double total = 0;
    for (const part_of_token& part : decode_token) {
        standing* found = nullptr;
        for (standing& each : all.standings())
            if (each.figure == part.figure && each.threads == 1) found = &each;  // the last is the most able
        if (found == nullptr) return;
        parts.emplace_back(found, found->ours * part.count);
        total += found->ours * part.count;
    }
    for (const auto& [found, seconds] : parts) found->token_share = seconds / total;
}

}  // namespace bench

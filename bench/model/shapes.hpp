#pragma once
// The shapes of the models that benchmarks run whole.
#include <array>
#include <cstddef>
#include <string_view>

namespace bench {

/// Sizes of a model; those that an architecture does not have are 0.
struct model_shape {
    std::string_view name, architecture;
    std::size_t layers, hidden, vocabulary;
    std::size_t heads, kv_heads, head_dim;  ///< of every fourth layer
    std::size_t key_heads, value_heads;     ///< of the other layers, 128 features each
    std::size_t intermediate;               ///< dense
    std::size_t experts, experts_used, expert_intermediate;
    std::size_t streams, mix_rank;  ///< hyper-connections
    std::size_t index_heads, index_dim, index_budget, ratio;
};

/// Qwen3.5-2B, and Qwen3.8-Flash-Next's layers: a quarter of them, with an eighth of the experts.
inline constexpr std::array<model_shape, 2> model_shapes{{{.name = "qwen35_2b",
                                                           .architecture = "qwen35",
                                                           .layers = 24,
                                                           .hidden = 2048,
                                                           .vocabulary = 248320,
                                                           .heads = 8,
                                                           .kv_heads = 2,
                                                           .head_dim = 256,
                                                           .key_heads = 16,
                                                           .value_heads = 16,
                                                           .intermediate = 6144,
                                                           .experts = 0,
                                                           .experts_used = 0,
                                                           .expert_intermediate = 0,
                                                           .streams = 1,
                                                           .mix_rank = 0,
                                                           .index_heads = 0,
                                                           .index_dim = 0,
                                                           .index_budget = 0,
                                                           .ratio = 0},
                                                          {.name = "qwen4exp_64",
                                                           .architecture = "qwen4exp",
                                                           .layers = 12,
                                                           .hidden = 2560,
                                                           .vocabulary = 248320,
                                                           .heads = 24,
                                                           .kv_heads = 2,
                                                           .head_dim = 256,
                                                           .key_heads = 16,
                                                           .value_heads = 48,
                                                           .intermediate = 0,
                                                           .experts = 64,
                                                           .experts_used = 10,
                                                           .expert_intermediate = 640,
                                                           .streams = 4,
                                                           .mix_rank = 320,
                                                           .index_heads = 4,
                                                           .index_dim = 128,
                                                           .index_budget = 2048,
                                                           .ratio = 4}}};

}  // namespace bench

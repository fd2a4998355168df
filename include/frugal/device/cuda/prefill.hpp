#pragma once
/// How products with many tokens are computed where activations are floats: a policy of device::cuda.
#include <concepts>
#include <cstddef>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/device/cuda/products.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/panels.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::prefill {

/// With the bits of products with few tokens. The default.
struct exact {
    static constexpr bool rounds = false;
    struct multiplier {};
};

/// By matrix units, for batches of more than 16 tokens: decoded weights and activations are rounded to bfloat16, each off by at
/// most 2^-9 of itself; sums are f32. A product is off by at most 2^-8 of the sum of its terms' magnitudes, and a token's bits
/// depend on how many tokens come with it: more than 16 or not. Products with device::q8_activations need none of this: their
/// matrix units give the bits of a single token. Products of chosen experts are rounded alike; gated delta rules are off by what
/// ops::cuda::gated_delta_rule_tiles states.
struct bf16_tiles {
    static constexpr bool rounds = true;
    static constexpr bool tiled_delta_rule = true;
    struct multiplier {
        template <quant::format Format>
        [[nodiscard]] status multiply(const gpu::context_ref& on, const gpu::stream& queue, const gpu::panel_product& product) {
            return on->check("start a product", gpu::multiply_panel_tiles<Format>(product, queue.get()));
        }
        template <quant::format Format>
        [[nodiscard]] status multiply_experts(const gpu::context_ref& on, const gpu::stream& queue,
                                              const gpu::expert_product& product) {
            return on->check("start a product", gpu::multiply_expert_panel_tiles<Format>(product, queue.get()));
        }
    };
};

}  // namespace device::prefill

namespace device {

/// prefill::exact, prefill::bf16_tiles, prefill::cublas (device/cuda/cublas.hpp), or one of your own: whether it rounds, and if
/// so a `multiplier`, one a device, that starts a product of panels with more than 16 tokens.
template <class P>
concept prefill_policy = std::default_initializable<typename P::multiplier> && std::movable<typename P::multiplier> &&
    (!P::rounds || requires(typename P::multiplier & m, const gpu::context_ref& on, const gpu::stream& queue,
                            const gpu::panel_product& product) {
        { m.template multiply<quant::f32>(on, queue, product) } -> std::same_as<status>;
    });
static_assert(prefill_policy<prefill::exact> && prefill_policy<prefill::bf16_tiles>);

/// Whether prefills take gated delta rules by matrix units (ops::cuda::gated_delta_rule_tiles). Under any other policy that
/// rounds they go in chunks of f32.
template <prefill_policy P>
inline constexpr bool tiles_delta_rule = requires {
    requires P::tiled_delta_rule;
};
static_assert(tiles_delta_rule<prefill::bf16_tiles> && !tiles_delta_rule<prefill::exact>);

/// A policy whose multiplier starts the products of a batch's chosen experts too. Under any other these stay exact.
template <class P>
concept expert_rounding_policy = prefill_policy<P> && P::rounds &&
    requires(typename P::multiplier& m, const gpu::context_ref& on, const gpu::stream& queue,
             const gpu::expert_product& product) {
    { m.template multiply_experts<quant::f32>(on, queue, product) } -> std::same_as<status>;
};
static_assert(expert_rounding_policy<prefill::bf16_tiles>);

namespace gpu {

/// Whether a batch so large is one that a policy may round.
[[nodiscard]] constexpr bool may_round(std::size_t tokens) noexcept { return tokens > 16; }

/// Whether the choices of a batch are to be grouped by expert: where that pays, and where the policy rounds.
template <prefill_policy Prefill>
[[nodiscard]] constexpr bool groups_choices(std::size_t tokens, std::size_t choices, std::size_t experts) noexcept {
    return expert_groups::pay(choices, experts) || (expert_rounding_policy<Prefill> && may_round(tokens));
}

/// Starts the products of chosen experts as the policies say: those of start_product. Errors: of the start.
template <quant::format Format, activation_policy Activations, prefill_policy Prefill>
[[nodiscard]] status start_expert_products(const context_ref& on, const stream& queue, typename Prefill::multiplier& rounding,
                                           const expert_product& product) {
    constexpr bool integers = Activations::quantized && quant::coded_layout<quant::panel_of<Format>>;
    if constexpr (expert_rounding_policy<Prefill> && !integers) {
        if (may_round(product.groups.tokens)) return rounding.template multiply_experts<Format>(on, queue, product);
    }
    return on->check("start a product", multiply_expert_panels<Format, Activations>(product, queue.get()));
}

/// Starts a product as the policies say: by Prefill's multiplier, where it rounds, activations are floats and tokens are more
/// than 16. Errors: of the start.
template <quant::format Format, activation_policy Activations, prefill_policy Prefill>
[[nodiscard]] status start_product(const context_ref& on, const stream& queue, typename Prefill::multiplier& rounding,
                                   const panel_product& product) {
    constexpr bool integers = Activations::quantized && quant::coded_layout<quant::panel_of<Format>>;
    if constexpr (Prefill::rounds && !integers) {
        if (may_round(product.x.tokens)) return rounding.template multiply<Format>(on, queue, product);
    }
    return on->check("start a product", multiply_panels<Format, Activations>(product, queue.get()));
}

}  // namespace gpu

}  // namespace device

FRUGAL_NAMESPACE_END

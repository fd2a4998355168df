#pragma once
/// The products that device::cuda starts. Their kernels are in device/cuda/panels/*.cuh, for nvcc: link frugal::cuda_kernels,
/// where they are instantiated for every format of the library, or a unit of your own made like those of kernels/cuda.
#include <cstddef>
#include <cstdint>

#include "frugal/core/config.hpp"
#include "frugal/device/cpu/activations.hpp"
#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Activations on a device, rows padded with zeros to whole groups of 32. All pointers 16-byte aligned.
struct activations {
    const float* values = nullptr;       ///< [tokens][32 * groups]
    const std::int8_t* codes = nullptr;  ///< [tokens][32 * groups], where they are quantised: quant::q8_activation<32>
    const std::int16_t* sums = nullptr;  ///< [tokens][groups][2]: of 16 codes each
    const float* scales = nullptr;       ///< [tokens][groups]
    std::size_t tokens = 0, groups = 0;
};

/// y[t][r] = sum over c of w[r][c] * x[t][c] for one matrix in panels (quant/panels.hpp) on the device.
struct panel_product {
    const std::byte* weights = nullptr;  ///< panels, 16-byte aligned
    std::size_t rows = 0, panel_bytes = 0;
    activations x;
    float* y = nullptr;
    std::size_t y_stride = 0;
    int multiprocessors = 1;  ///< of the device: decides how work is cut, never the bits
};

/// Starts the product on the stream. The bits depend neither on how tokens are batched nor on the device.
template <class Format, activation_policy Activations>
[[nodiscard]] cudaError_t multiply_panels(const panel_product& product, cudaStream_t stream);

/// The same with weights and activations rounded to bfloat16 (device::prefill::bf16_tiles), for many tokens.
template <class Format>
[[nodiscard]] cudaError_t multiply_panel_tiles(const panel_product& product, cudaStream_t stream);

/// The weights of a product, decoded and rounded to bfloat16: out [rows][32 * groups], on the device, 16-byte aligned. Of
/// `weights` only the weights, their shape and x.groups count.
template <class Format>
[[nodiscard]] cudaError_t decode_panels(const panel_product& weights, bfloat16* out, cudaStream_t stream);

/// `count` numbers, a multiple of 4, rounded to To: bfloat16. Both 16-byte aligned, on the device.
template <class To>
[[nodiscard]] cudaError_t round_values(const float* from, std::size_t count, To* to, cudaStream_t stream);

/// Choices of one expert that stand together in expert_groups::order, from `first` on.
struct choice_tile {
    std::int32_t expert = 0, first = 0, count = 0;  ///< count 0: nothing to do
};

/// The choices of a batch by expert, made by ops::cuda::group_choices: what lets a block read an expert's weights once for
/// several of its choices. All arrays on the device.
struct expert_groups {
    static constexpr std::size_t few = 8, many = 32;  ///< choices of a tile, at most

    std::size_t experts = 0;
    std::size_t tokens = 0;                             ///< of the batch: decides whether a prefill policy rounds
    std::int32_t* order = nullptr;                      ///< [choices]: their numbers, expert by expert, those of one ascending
    choice_tile *of_few = nullptr, *of_many = nullptr;  ///< [most_tiles(choices, experts, few)], […, many)]; those left are empty

    /// Tiles of `size` choices that any batch of so many has at most: each chosen expert has one that may not be full.
    [[nodiscard]] static constexpr std::size_t most_tiles(std::size_t choices, std::size_t experts, std::size_t size) noexcept {
        return (choices + (size - 1) * (choices < experts ? choices : experts)) / size;
    }
    /// Whether experts have choices enough for blocks that take several: such a block has more registers, so fewer run at once.
    [[nodiscard]] static constexpr bool pay(std::size_t choices, std::size_t experts) noexcept { return choices >= 2 * experts; }
};

/// One product a chosen expert: y[i][r] = sum over c of w[experts[i]][r][c] * x[i / share][c]. The experts' panels follow one
/// another from `panels.weights` on, alike in shape. A token's choices share its activations (share = choices of a token), or
/// each has its own (1). Without groups (order null) a block reads its panel for a single choice; with them once for each tile
/// of an expert's, so that a batch reads about as much as the experts it chose have.
struct expert_product {
    panel_product panels;
    const std::int32_t* experts = nullptr;  ///< [choices], on the device
    std::size_t choices = 0, share = 1;
    expert_groups groups;  ///< of `experts`
};

/// Starts the products of a batch's chosen experts, each with the bits that multiply_panels gives for it, with groups or
/// without.
template <class Format, activation_policy Activations>
[[nodiscard]] cudaError_t multiply_expert_panels(const expert_product& product, cudaStream_t stream);

/// The same with weights and activations rounded to bfloat16 (device::prefill::bf16_tiles). Precondition: there are groups.
template <class Format>
[[nodiscard]] cudaError_t multiply_expert_panel_tiles(const expert_product& product, cudaStream_t stream);

/// Rounds activations to 8 bits, for a policy that wants it: codes, sums and scales of quant::q8_activation<32>.
template <activation_policy Activations>
    requires(Activations::quantized)
[[nodiscard]] cudaError_t quantize_activations(const float* values, std::size_t tokens, std::size_t groups, std::int8_t* codes,
                                               std::int16_t* sums, float* scales, cudaStream_t stream);

}  // namespace device::gpu

FRUGAL_NAMESPACE_END

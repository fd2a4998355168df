#pragma once
/// What a step of model::cuda_decoder works in: descriptions that go up, activations, results that come down.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/cuda_decoder_layers.hpp"
#include "frugal/ops/attention/step_cuda.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/ops/rope/rope_cuda.hpp"
#include "frugal/ops/sampling/sampling_cuda.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// The buffers of a step of options.batch_tokens, which the layers use one after the other. Types: cuda_layer_types<...>.
template <class Types>
struct FRUGAL_FLAGGED cuda_decoder_buffers {
    using device_type = typename Types::device_type;
    using pass_type = device::gpu::pass<device_type>;

    device::gpu::pinned_memory described, how_described, results, first_bad;  ///< on the host: what goes up, what comes down
    std::optional<pass_type> pass;
    ops::cuda::step_token* tokens = nullptr;  ///< as described
    ops::cuda::step_rows step;
    std::uint32_t* length = nullptr;  ///< of the sequence
    ops::cuda::rope_frequencies rope;
    float *angles = nullptr, *block_angles = nullptr;
    matrix_view<float> stream, mixed, branch, logits;
    ops::cuda::sampling_draw* how = nullptr;  ///< as described
    std::int32_t* chosen = nullptr;
    int* bad_row = nullptr;  ///< the first row whose router logits are not finite; set above all rows before a step

    /// Errors: out_of_memory, device_failed, device_lost.
    [[nodiscard]] static result<cuda_decoder_buffers> create(device_type& dev, device::gpu::room& memory, const config& sizes,
                                                             const cuda_decoder_options& options) {
        cuda_decoder_buffers out;
        const std::size_t rows = options.batch_tokens;
        FRUGAL_TRY_ASSIGN(out.tokens, memory.array<ops::cuda::step_token>(rows));
        FRUGAL_TRY_ASSIGN(out.step.tokens, memory.array<std::int64_t>(rows));
        FRUGAL_TRY_ASSIGN(out.step.positions, memory.array<ops::rope_position>(rows));
        FRUGAL_TRY_ASSIGN(out.step.visible, memory.array<std::uint32_t>(rows));
        FRUGAL_TRY_ASSIGN(out.length, memory.array<std::uint32_t>(1));
        FRUGAL_TRY_ASSIGN(out.stream, memory.matrix(rows, sizes.streams * sizes.hidden));
        FRUGAL_TRY_ASSIGN(out.mixed, memory.input_matrix(rows, sizes.hidden));
        FRUGAL_TRY_ASSIGN(out.branch, memory.matrix(rows, sizes.hidden));
        FRUGAL_TRY_ASSIGN(out.logits, memory.matrix(options.logit_rows, sizes.vocabulary));
        FRUGAL_TRY_ASSIGN(out.how, memory.array<ops::cuda::sampling_draw>(1));
        FRUGAL_TRY_ASSIGN(out.chosen, memory.array<std::int32_t>(1));
        FRUGAL_TRY_ASSIGN(out.bad_row, memory.array<int>(1));
        if (std::find(sizes.layers.begin(), sizes.layers.end(), layer_kind::attention) != sizes.layers.end())
            FRUGAL_TRY(out.make_attention(memory, sizes, options));
        out.pass.emplace(dev.context(), dev.queue());
        const auto pinned = [&](std::size_t bytes) { return device::gpu::pinned_memory::allocate(dev.context(), bytes); };
        FRUGAL_TRY_ASSIGN(out.described, pinned(rows * sizeof(ops::cuda::step_token)));
        FRUGAL_TRY_ASSIGN(out.how_described, pinned(sizeof(ops::cuda::sampling_draw)));
        FRUGAL_TRY_ASSIGN(out.results, pinned(options.logit_rows * sizes.vocabulary * sizeof(float)));
        FRUGAL_TRY_ASSIGN(out.first_bad, pinned(sizeof(int)));
        return out;
    }

private:
    [[nodiscard]] status make_attention(device::gpu::room& memory, const config& sizes, const cuda_decoder_options& options) {
        const std::size_t rows = options.batch_tokens;
        if constexpr (Types::sparse) {
            const std::size_t history_rows = Types::history_rows(options);
            step.ratio = static_cast<std::uint32_t>(Types::ratio);
            step.history_rows = static_cast<std::uint32_t>(history_rows);
            FRUGAL_TRY_ASSIGN(step.complete, memory.array<std::uint32_t>(rows));
            FRUGAL_TRY_ASSIGN(step.block_positions, memory.array<ops::rope_position>(rows));
            FRUGAL_TRY_ASSIGN(step.history, memory.array<ops::rope_position>(history_rows));
            FRUGAL_TRY_ASSIGN(block_angles, memory.array<float>(rows * sizes.rotary_dim));
        }
        const ops::rope_table table = sizes.make_rope_table();
        std::vector<std::uint8_t> components(table.inv_freq.size());
        for (std::size_t j = 0; j < components.size(); ++j) components[j] = static_cast<std::uint8_t>(table.component(j));
        FRUGAL_TRY_ASSIGN(rope.inv_freq, memory.copy(std::span<const float>(table.inv_freq)));
        FRUGAL_TRY_ASSIGN(rope.components, memory.copy(std::span<const std::uint8_t>(components)));
        rope.pairs = static_cast<int>(components.size());
        rope.magnitude = table.magnitude;
        FRUGAL_TRY_ASSIGN(angles, memory.array<float>(rows * sizes.rotary_dim));
        return {};
    }
};

}  // namespace model

FRUGAL_NAMESPACE_END

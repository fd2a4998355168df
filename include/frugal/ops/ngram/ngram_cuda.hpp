#pragma once
/// n-gram embeddings on a GPU, declared; see ops/README.md.
#include <cstddef>
#include <cstdint>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/kernel_queue.hpp"
#include "frugal/device/cuda/runtime.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// An ngram_hash whose arrays are on the device.
struct device_ngram_hash {
    int ngram_size = 0, heads_per_ngram = 0;
    std::int64_t eos = 0;
    const std::uint64_t *multipliers = nullptr, *head_offsets = nullptr, *head_sizes = nullptr;
};

/// As ngram_hash::rows, on device memory: before [ngram_size - 1], tokens [count], rows [count][heads]; every token is of the
/// vocabulary.
template <class Unit = void>
[[nodiscard]] cudaError_t ngram_rows(const device_ngram_hash& hash, const std::int64_t* before, const std::int64_t* tokens,
                                     std::size_t count, std::int64_t* rows, cudaStream_t stream);

/// The tokens before the next call of ngram_rows: before becomes the newest `context` of [before, tokens].
template <class Unit = void>
[[nodiscard]] cudaError_t keep_ngram_tokens(std::int64_t* before, std::size_t context, const std::int64_t* tokens,
                                            std::size_t count, cudaStream_t stream);

/// As ops::ngram_gate, on device memory. y may be the memory of key.
template <class Unit = void>
[[nodiscard]] cudaError_t ngram_gate(matrix_view<const float> key, matrix_view<const float> query, matrix_view<const float> value,
                                     matrix_view<float> y, cudaStream_t stream);

}  // namespace ops::cuda

namespace ops {

/// The same call as on the host, on device memory: queued.
/// Precondition: shapes that the host's operator takes. Errors: of the start.
template <device::gpu::kernel_queue Pass>
[[nodiscard]] status ngram_gate(const Pass& pass, matrix_view<const float> key, matrix_view<const float> query,
                                matrix_view<const float> value, matrix_view<float> y) {
    return pass.start([&](cudaStream_t stream) { return cuda::ngram_gate(key, query, value, y, stream); });
}

}  // namespace ops

FRUGAL_NAMESPACE_END

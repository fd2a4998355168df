#pragma once
/// Softmax attention of many queries of one sequence by the matrix units of a GPU: a prefill. Queries and softmax weights are
/// rounded to bfloat16, keys and values are bfloat16; sums are f32. Beside ops::cuda::split_attention, which rounds neither, a
/// score is off by at most 2^-9 of the sum of its terms' magnitudes, and an output by 2^-8 of the greatest magnitude among the
/// values. Sources: Dao et al. 2022 (arXiv:2205.14135); the online softmax of Milakov and Gimelshein 2018 (arXiv:1805.02867).
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/async_copy.cuh"
#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/tensor_core.cuh"
#include "frugal/ops/attention/attention_cuda.cuh"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int tile_keys = 16;   ///< keys of a tile
inline constexpr int query_warps = 4;  ///< of a block, 16 queries each

template <int HeadSize>
struct attention_tiles_shared {
    static constexpr int pitch = HeadSize + 8;  // rows of whole 16 bytes that begin in different banks
    alignas(16) std::uint16_t query[16 * query_warps][pitch];
    alignas(16) std::uint16_t key[2][tile_keys][pitch], value[2][tile_keys][pitch];
};

struct attention_tiles_arguments {
    const float* q;
    std::size_t q_stride;
    int head_stride;  ///< of q, in floats
    int group;        ///< query heads of a key-value head
    int queries;
    key_value_view<bfloat16> cache;
    const std::uint32_t* visible;  ///< [queries] keys that each query sees: the first so many; they never fall
    float scale;
    float* y;
    std::size_t y_stride;
};

/// Takes values that are not finite out of a tile's fragment, and adds them to the queries that see them: a masked weight is
/// zero, and zero times such a value would not be. Lane's queries see the first `seen` keys of the tile.
FRUGAL_DEVICE void add_apart_not_finite(device::gpu::fragment_c& out, const device::gpu::fragment_a& weights,
                                        const int (&seen)[2], device::gpu::fragment_b& values) {
    namespace gpu = device::gpu;
    gpu::fragment_b apart{}, marks{};
    FRUGAL_UNROLL
    for (int x = 0; x < 2; ++x) {
        FRUGAL_UNROLL
        for (int shift = 0; shift < 32; shift += 16) {
            if ((values.x[x] >> shift & 0x7F80u) != 0x7F80u) continue;
            apart.x[x] |= values.x[x] & 0xFFFFu << shift;
            marks.x[x] |= 0x3F80u << shift;  // 1
            values.x[x] &= ~(0xFFFFu << shift);
        }
    }
    if (__any_sync(gpu::full_warp, (marks.x[0] | marks.x[1]) != 0) == 0) return;
    const int pair = static_cast<int>(threadIdx.x) % 4 * 2;
    gpu::fragment_a visible;
    FRUGAL_UNROLL
    for (int x = 0; x < 4; ++x) {
        const int key = x / 2 * 8 + pair;
        visible.x[x] = gpu::pack_bf16(key < seen[x % 2] ? 1.0f : 0.0f, key + 1 < seen[x % 2] ? 1.0f : 0.0f);
    }
    gpu::fragment_c count{}, product{};
    gpu::multiply_add(count, visible, marks);
    gpu::multiply_add(product, weights, apart);
    FRUGAL_UNROLL
    for (int x = 0; x < 4; ++x)
        if (count.x[x] != 0.0f) out.x[x] += product.x[x];
}

/// Grid: [queries / (16 * query_warps), rounded up; query heads]; dynamic shared memory: attention_tiles_shared<HeadSize>.
template <int HeadSize>
__global__ void __launch_bounds__(32 * query_warps, 1) attend_tiles(attention_tiles_arguments a) {
    namespace gpu = device::gpu;
    static_assert(HeadSize % 16 == 0, "frugal: heads of matrix units have whole tiles of 16 features");
    using shared_type = attention_tiles_shared<HeadSize>;
    shared_type& shared = *gpu::dynamic_shared<shared_type>();
    constexpr int depth = HeadSize / 16, columns = HeadSize / 8, threads = 32 * query_warps;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, row = lane / 4, pair = lane % 4 * 2;
    const int first_query = static_cast<int>(blockIdx.x) * 16 * query_warps, head = static_cast<int>(blockIdx.y);
    const int own_query = first_query + 16 * warp + row;  // and 8 further
    const int last_query = (min)(first_query + 16 * query_warps, a.queries) - 1;
    const auto keys = static_cast<int>(a.visible[last_query]), tiles = (keys + tile_keys - 1) / tile_keys;
    const std::size_t offset = static_cast<std::size_t>(head / a.group) * HeadSize;

    const auto fetch = [&](int t) {
        for (int i = thread; i < tile_keys * columns; i += threads) {
            const int r = i / columns, c = i % columns * 8, k = t * tile_keys + r;
            const bool valid = k < keys;
            const std::size_t token = static_cast<std::size_t>(valid ? k : 0), chunk = token >> a.cache.chunk_shift;
            const std::size_t at =
                (token & ((std::size_t{1} << a.cache.chunk_shift) - 1)) * a.cache.stride + offset + static_cast<std::size_t>(c);
            gpu::async_copy_16(&shared.key[t % 2][r][c], a.cache.keys[chunk] + at, valid);
            gpu::async_copy_16(&shared.value[t % 2][r][c], a.cache.values[chunk] + at, valid);
        }
        gpu::async_copy_commit();
    };
    const auto pair_at = [](const std::uint16_t* at) { return *reinterpret_cast<const std::uint32_t*>(at); };
    if (tiles != 0) fetch(0);
    for (int i = thread; i < 16 * query_warps * (HeadSize / 2); i += threads) {
        const int r = i / (HeadSize / 2), c = i % (HeadSize / 2) * 2, query = (min)(first_query + r, a.queries - 1);
        const float* const from = a.q + static_cast<std::size_t>(query) * a.q_stride +
                                  static_cast<std::size_t>(head) * static_cast<std::size_t>(a.head_stride) + c;
        *reinterpret_cast<std::uint32_t*>(&shared.query[r][c]) = gpu::pack_bf16(from[0], from[1]);
    }
    int limit[2];  // keys that the lane's two queries see
    FRUGAL_UNROLL
    for (int h = 0; h < 2; ++h) limit[h] = static_cast<int>(a.visible[(min)(own_query + 8 * h, a.queries - 1)]);
    const auto least = static_cast<int>(a.visible[(min)(first_query + 16 * warp, a.queries - 1)]);  // that any of the warp's sees

    gpu::fragment_c out[columns];
    FRUGAL_UNROLL
    for (int c = 0; c < columns; ++c) {
        FRUGAL_UNROLL
        for (int x = 0; x < 4; ++x) out[c].x[x] = 0.0f;
    }
    float greatest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    for (int t = 0; t < tiles; ++t) {
        if (t + 1 < tiles) {
            fetch(t + 1);
            gpu::async_copy_wait<1>();
        } else {
            gpu::async_copy_wait<0>();
        }
        __syncthreads();  // the tile, and at first the queries, are here for all

        gpu::fragment_c score[2];
        FRUGAL_UNROLL
        for (int n = 0; n < 2; ++n) {
            FRUGAL_UNROLL
            for (int x = 0; x < 4; ++x) score[n].x[x] = 0.0f;
        }
        FRUGAL_UNROLL
        for (int d = 0; d < depth; ++d) {
            gpu::fragment_a q;
            FRUGAL_UNROLL
            for (int x = 0; x < 4; ++x) q.x[x] = pair_at(&shared.query[16 * warp + row + x % 2 * 8][d * 16 + pair + x / 2 * 8]);
            FRUGAL_UNROLL
            for (int n = 0; n < 2; ++n) {
                const std::uint16_t* const k = &shared.key[t % 2][n * 8 + row][d * 16 + pair];
                gpu::multiply_add(score[n], q, gpu::fragment_b{{pair_at(k), pair_at(k + 8)}});
            }
        }

        gpu::fragment_a weights;
        float shrink[2];
        FRUGAL_UNROLL
        for (int h = 0; h < 2; ++h) {  // the lane's two queries
            float most = greatest[h];
            FRUGAL_UNROLL
            for (int n = 0; n < 2; ++n) {
                FRUGAL_UNROLL
                for (int i = 0; i < 2; ++i) {
                    float& s = score[n].x[h * 2 + i];
                    s = t * tile_keys + n * 8 + pair + i < limit[h] ? s * a.scale : -INFINITY;
                    most = fmaxf(most, s);
                }
            }
            FRUGAL_UNROLL
            for (int lanes = 1; lanes < 4; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(gpu::full_warp, most, lanes));
            // A query that has seen nothing yet keeps its zeros.
            shrink[h] = most == -INFINITY ? 0.0f : expf(greatest[h] - most);
            greatest[h] = most;
            float sum = 0.0f;
            FRUGAL_UNROLL
            for (int n = 0; n < 2; ++n) {
                float weight[2];
                FRUGAL_UNROLL
                for (int i = 0; i < 2; ++i) {
                    const float s = score[n].x[h * 2 + i];
                    weight[i] = s == -INFINITY ? 0.0f : expf(s - most);
                    sum += weight[i];
                }
                weights.x[n * 2 + h] = gpu::pack_bf16(weight[0], weight[1]);
            }
            FRUGAL_UNROLL
            for (int lanes = 1; lanes < 4; lanes *= 2) sum += __shfl_xor_sync(gpu::full_warp, sum, lanes);
            total[h] = fmaf(total[h], shrink[h], sum);
        }
        const int seen[2] = {limit[0] - t * tile_keys, limit[1] - t * tile_keys};
        const bool partly = (t + 1) * tile_keys > least;
        FRUGAL_UNROLL
        for (int c = 0; c < columns; ++c) {
            FRUGAL_UNROLL
            for (int x = 0; x < 4; ++x) out[c].x[x] *= shrink[x / 2];
            gpu::fragment_b values = gpu::load_transposed(&shared.value[t % 2][lane % 16][c * 8]);
            if (partly) add_apart_not_finite(out[c], weights, seen, values);
            gpu::multiply_add(out[c], weights, values);
        }
        __syncthreads();  // nobody reads the tile any more
    }

    FRUGAL_UNROLL
    for (int c = 0; c < columns; ++c) {
        FRUGAL_UNROLL
        for (int x = 0; x < 4; ++x) {
            const int query = own_query + x / 2 * 8;
            if (query < a.queries)
                a.y[static_cast<std::size_t>(query) * a.y_stride + static_cast<std::size_t>(head) * HeadSize +
                    static_cast<std::size_t>(c * 8 + pair + x % 2)] = limit[x / 2] == 0 ? 0.0f : out[c].x[x] / total[x / 2];
        }
    }
}

template <class Unit>
cudaError_t tile_attention(matrix_view<const float> q, const split_heads& shape, float scale,
                           const key_value_view<bfloat16>& cache, const std::uint32_t* visible, matrix_view<float> y,
                           cudaStream_t stream) {
    if (q.rows() == 0) return cudaSuccess;
    const attention_tiles_arguments a{q.data(),
                                      q.stride(),
                                      static_cast<int>(q.cols() / shape.heads),
                                      static_cast<int>(shape.heads / shape.kv_heads),
                                      static_cast<int>(q.rows()),
                                      cache,
                                      visible,
                                      scale,
                                      y.data(),
                                      y.stride()};
    constexpr std::size_t a_block = 16 * query_warps;
    const dim3 grid(static_cast<unsigned>((q.rows() + a_block - 1) / a_block), static_cast<unsigned>(shape.heads));
    const auto start = [&](auto kernel, std::size_t shared) {
        return device::gpu::launch(kernel, grid, dim3(32 * query_warps), shared, stream, a);
    };
    if (shape.head_dim == 64) return start(attend_tiles<64>, sizeof(attention_tiles_shared<64>));
    if (shape.head_dim == 128) return start(attend_tiles<128>, sizeof(attention_tiles_shared<128>));
    if (shape.head_dim == 256) return start(attend_tiles<256>, sizeof(attention_tiles_shared<256>));
    return cudaErrorInvalidValue;
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END

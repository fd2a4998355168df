#pragma once
/// Softmax attention of few queries over many cached keys on a GPU, all of them or those of an index list. The keys are cut
/// into spans that blocks take by themselves; a second kernel merges them in order. Source of the split: Dao et al. 2023,
/// "Flash-Decoding"; of the online softmax: Milakov and Gimelshein 2018 (arXiv:1805.02867).
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/transpose_sum.cuh"
#include "frugal/device/cuda/warp.cuh"
#include "frugal/ops/attention/attention_cuda.hpp"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int split_warps = 4;
inline constexpr int split_most_dim = 256;  ///< features of a head, at most

/// Feature i of a stored row.
FRUGAL_DEVICE float feature_at(const float* row, int i) { return row[i]; }
FRUGAL_DEVICE float feature_at(const half* row, int i) { return __half2float(__ushort_as_half(row[i].bits)); }
FRUGAL_DEVICE float feature_at(const bfloat16* row, int i) { return __uint_as_float(static_cast<unsigned>(row[i].bits) << 16); }
/// Of blocks of q8_0: a half, then 32 codes.
FRUGAL_DEVICE float feature_at(const std::int8_t* row, int i) {
    const std::int8_t* const block = row + i / 32 * 34;
    const unsigned short bits = __ldg(reinterpret_cast<const unsigned short*>(block));
    return __half2float(__ushort_as_half(bits)) * static_cast<float>(__ldg(block + 2 + i % 32));
}

/// `Count` features from `first` on, which is a multiple of Count.
template <int Count>
FRUGAL_DEVICE void load_features(const float* row, int first, float (&out)[Count]) {
    if constexpr (Count % 4 == 0) {
        FRUGAL_UNROLL
        for (int i = 0; i < Count; i += 4) {
            const float4 four = __ldg(reinterpret_cast<const float4*>(row + first + i));
            out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
        }
    } else {
        FRUGAL_UNROLL
        for (int i = 0; i < Count; ++i) out[i] = row[first + i];
    }
}
template <int Count, class Element>
    requires(sizeof(Element) == 2)
FRUGAL_DEVICE void load_features(const Element* row, int first, float (&out)[Count]) {
    if constexpr (Count % 2 == 0) {
        unsigned packed[Count / 2];
        const auto* const from = reinterpret_cast<const unsigned*>(row + first);
        if constexpr (Count == 8) {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
            packed[0] = four.x, packed[1] = four.y, packed[2] = four.z, packed[3] = four.w;
        } else if constexpr (Count == 4) {
            const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
            packed[0] = two.x, packed[1] = two.y;
        } else {
            FRUGAL_UNROLL
            for (int w = 0; w < Count / 2; ++w) packed[w] = __ldg(from + w);
        }
        FRUGAL_UNROLL
        for (int i = 0; i < Count; ++i) {
            const auto bits = static_cast<std::uint16_t>(i % 2 == 0 ? packed[i / 2] & 0xFFFFu : packed[i / 2] >> 16);
            const Element element{bits};
            out[i] = feature_at(&element, 0);
        }
    } else {
        FRUGAL_UNROLL
        for (int i = 0; i < Count; ++i) out[i] = feature_at(row, first + i);
    }
}
/// Within one block of q8_0, whose codes are two by two aligned.
template <int Count>
FRUGAL_DEVICE void load_features(const std::int8_t* row, int first, float (&out)[Count]) {
    if constexpr (Count % 2 == 0) {
        const auto* const block = reinterpret_cast<const unsigned short*>(row + first / 32 * 34);
        const float scale = __half2float(__ushort_as_half(__ldg(block)));
        FRUGAL_UNROLL
        for (int i = 0; i < Count; i += 2) {
            const unsigned two = __ldg(block + 1 + (first % 32 + i) / 2);
            out[i] = scale * static_cast<float>(static_cast<std::int8_t>(static_cast<std::uint8_t>(two & 0xFFu)));
            out[i + 1] = scale * static_cast<float>(static_cast<std::int8_t>(static_cast<std::uint8_t>(two >> 8)));
        }
    } else {
        FRUGAL_UNROLL
        for (int i = 0; i < Count; ++i) out[i] = feature_at(row, first + i);
    }
}

struct split_arguments {
    const float* q;
    std::size_t q_stride;
    int head_stride;  ///< of q, in floats
    int group, kv_heads, head_dim;
    int kv_elements;  ///< of one key-value head of a token
    int spans;        ///< for which `partial` has room in every row
    float scale;
    float* partial;  ///< [rows][kv_heads * group][spans][head_dim + 2]: unnormalised output, greatest score, sum of weights
};

template <class Element, int Heads>
struct split_shared {
    const Element* keys[split_keys];
    const Element* values[split_keys];
    float weights[Heads][split_keys];
};

/// One span of keys for up to `Heads` query heads of one key-value head. Features: of a head, 32 a lane's worth; Whole where a
/// head has exactly 32 * Features. Grid: [spans, key-value heads * slices of Heads, rows].
template <class Scalar, int Heads, int Features, bool Whole>
__global__ void __launch_bounds__(32 * split_warps, 1)
    attend_spans(split_arguments a, const split_row<Scalar>* __restrict__ rows) {
    using element = typename stored_features<Scalar>::element;
    constexpr int at_once = 32 / Heads;  // keys that a warp scores together
    auto& shared = device::gpu::block_shared<split_shared<element, Heads>>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int slices = (a.group + Heads - 1) / Heads;
    const int kv_head = static_cast<int>(blockIdx.y) / slices, first_head = static_cast<int>(blockIdx.y) % slices * Heads;
    const int heads = min(Heads, a.group - first_head);
    const split_row<Scalar>& row = rows[blockIdx.z];
    const auto begin = static_cast<std::uint32_t>(blockIdx.x) * split_keys;
    if (begin >= row.visible) return;  // the whole block leaves
    const int keys = static_cast<int>(min(static_cast<unsigned>(split_keys), row.visible - begin));

    for (int i = thread; i < split_keys; i += 32 * split_warps) {
        const std::uint32_t at = begin + static_cast<std::uint32_t>(min(i, keys - 1));
        const std::size_t token = row.list != nullptr ? row.list[at] : at;
        const std::size_t chunk = token >> row.cache.chunk_shift;
        const std::size_t within = (token & ((std::size_t{1} << row.cache.chunk_shift) - 1)) * row.cache.stride +
                                   static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(a.kv_elements);
        shared.keys[i] = row.cache.keys[chunk] + within;
        shared.values[i] = row.cache.values[chunk] + within;
    }
    const auto feature = [&](int i) { return Whole ? lane * Features + i : lane + 32 * i; };
    const float* const queries =
        a.q + blockIdx.z * a.q_stride +
        static_cast<std::size_t>(kv_head * a.group + first_head) * static_cast<std::size_t>(a.head_stride);
    float q[Heads][Features];
    FRUGAL_UNROLL
    for (int h = 0; h < Heads; ++h) {
        FRUGAL_UNROLL
        for (int i = 0; i < Features; ++i)
            q[h][i] = h < heads && (Whole || feature(i) < a.head_dim)
                          ? queries[static_cast<std::size_t>(h) * static_cast<std::size_t>(a.head_stride) +
                                    static_cast<std::size_t>(feature(i))]
                          : 0.0f;
    }
    __syncthreads();  // where the keys are is known

    for (int first = warp * at_once; first < split_keys; first += split_warps * at_once) {
        float dots[32];
        FRUGAL_UNROLL
        for (int k = 0; k < at_once; ++k) {
            const element* const key = shared.keys[first + k];
            float features[Features];
            if constexpr (Whole) {
                load_features(key, lane * Features, features);
            } else {
                FRUGAL_UNROLL
                for (int i = 0; i < Features; ++i) features[i] = feature(i) < a.head_dim ? feature_at(key, feature(i)) : 0.0f;
            }
            FRUGAL_UNROLL
            for (int h = 0; h < Heads; ++h) {
                float dot = 0.0f;
                FRUGAL_UNROLL
                for (int i = 0; i < Features; ++i) dot = fmaf(q[h][i], features[i], dot);
                dots[k * Heads + h] = dot;
            }
        }
        const float score = device::gpu::transpose_sum(dots) * a.scale;
        shared.weights[lane % Heads][first + lane / Heads] = score;
    }
    __syncthreads();  // all scores are here

    const auto partial_of = [&](int h) {
        const std::size_t head = blockIdx.z * static_cast<std::size_t>(a.kv_heads * a.group) +
                                 static_cast<std::size_t>(kv_head * a.group + first_head + h);
        return a.partial + (head * static_cast<std::size_t>(a.spans) + blockIdx.x) * static_cast<std::size_t>(a.head_dim + 2);
    };
    for (int h = warp; h < heads; h += split_warps) {
        float most = -INFINITY, sum = 0.0f;
        for (int k = lane; k < keys; k += 32) most = fmaxf(most, shared.weights[h][k]);
        most = device::gpu::lane_max(most);
        for (int k = lane; k < keys; k += 32) {
            const float weight = expf(shared.weights[h][k] - most);
            shared.weights[h][k] = weight;
            sum += weight;
        }
        sum = device::gpu::lane_sum(sum);
        if (lane == 0) {
            partial_of(h)[a.head_dim] = most;
            partial_of(h)[a.head_dim + 1] = sum;
        }
    }
    __syncthreads();  // all weights are here

    constexpr int pack = Whole && Features == 8 ? 2 : 1;  // neighbouring features of a thread
    for (int d = thread * pack; d < a.head_dim; d += 32 * split_warps * pack) {
        float sums[Heads][pack];
        FRUGAL_UNROLL
        for (int h = 0; h < Heads; ++h) {
            FRUGAL_UNROLL
            for (int i = 0; i < pack; ++i) sums[h][i] = 0.0f;
        }
        for (int k = 0; k < keys; ++k) {
            float value[pack];
            load_features(shared.values[k], d, value);
            FRUGAL_UNROLL
            for (int h = 0; h < Heads; ++h) {
                FRUGAL_UNROLL
                for (int i = 0; i < pack; ++i) sums[h][i] = fmaf(shared.weights[h < heads ? h : 0][k], value[i], sums[h][i]);
            }
        }
        FRUGAL_UNROLL
        for (int h = 0; h < Heads; ++h) {
            FRUGAL_UNROLL
            for (int i = 0; i < pack; ++i)
                if (h < heads) partial_of(h)[d + i] = sums[h][i];
        }
    }
}

/// y[row][head] from the spans of a row, in order. Grid: [heads, rows].
template <class Scalar, int Threads>
__global__ void __launch_bounds__(Threads)
    merge_spans(const float* __restrict__ partial, int spans, int head_dim, const split_row<Scalar>* __restrict__ rows,
                float* __restrict__ y, std::size_t y_stride) {
    const auto visible = static_cast<int>((rows[blockIdx.y].visible + split_keys - 1) / split_keys);
    const std::size_t head = blockIdx.y * static_cast<std::size_t>(gridDim.x) + blockIdx.x;
    const float* const own = partial + head * static_cast<std::size_t>(spans) * static_cast<std::size_t>(head_dim + 2);
    const auto span = [&](int s) { return own + static_cast<std::size_t>(s) * static_cast<std::size_t>(head_dim + 2); };
    float most = -INFINITY, sum = 0.0f;
    for (int s = 0; s < visible; ++s) most = fmaxf(most, span(s)[head_dim]);
    for (int s = 0; s < visible; ++s) sum = fmaf(expf(span(s)[head_dim] - most), span(s)[head_dim + 1], sum);
    for (int d = static_cast<int>(threadIdx.x); d < head_dim; d += Threads) {
        float value = 0.0f;
        for (int s = 0; s < visible; ++s) value = fmaf(expf(span(s)[head_dim] - most), span(s)[d], value);
        y[blockIdx.y * y_stride + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(head_dim) +
          static_cast<std::size_t>(d)] = visible == 0 ? 0.0f : value / sum;
    }
}

template <class Scalar>
cudaError_t split_attention(matrix_view<const float> q, const split_heads& shape, float scale, const split_row<Scalar>* rows,
                            std::size_t visible, float* partial, matrix_view<float> y, cudaStream_t stream) {
    if (q.rows() == 0) return cudaSuccess;
    if (shape.head_dim > static_cast<std::size_t>(split_most_dim) || shape.head_dim % stored_features<Scalar>::block != 0)
        return cudaErrorInvalidValue;
    const std::size_t spans = (visible + split_keys - 1) / split_keys, group = shape.heads / shape.kv_heads;
    const split_arguments a{q.data(),
                            q.stride(),
                            static_cast<int>(q.cols() / shape.heads),
                            static_cast<int>(group),
                            static_cast<int>(shape.kv_heads),
                            static_cast<int>(shape.head_dim),
                            static_cast<int>(stored_features<Scalar>::elements(shape.head_dim)),
                            static_cast<int>(spans),
                            scale,
                            partial};
    const auto start = [&](auto kernel, std::size_t heads) {
        const dim3 grid(static_cast<unsigned>(spans), static_cast<unsigned>(shape.kv_heads * ((group + heads - 1) / heads)),
                        static_cast<unsigned>(q.rows()));
        return device::gpu::launch(kernel, grid, dim3(32 * split_warps), 0, stream, a, rows);
    };
    const auto start_heads = [&]<int Features, bool Whole>() {
        if (group <= 4) return start(attend_spans<Scalar, 4, Features, Whole>, 4);
        return start(attend_spans<Scalar, 8, Features, Whole>, 8);
    };
    cudaError_t started = cudaSuccess;
    if (spans != 0) {
        // Rows begin at a multiple of what a lane loads.
        if (shape.head_dim == 256)
            started = start_heads.template operator()<8, true>();
        else if (shape.head_dim == 128)
            started = start_heads.template operator()<4, true>();
        else
            started = start_heads.template operator()<8, false>();
        if (started != cudaSuccess) return started;
    }
    constexpr unsigned threads = 128;
    return device::gpu::launch(
        merge_spans<Scalar, threads>, dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(q.rows())), dim3(threads), 0,
        stream, partial, static_cast<int>(spans), static_cast<int>(shape.head_dim), rows, y.data(), y.stride());
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END

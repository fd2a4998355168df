#pragma once
/// Softmax attention of few queries over many cached keys on a GPU, all of them or those of an index list. The keys are cut
/// into spans that blocks take by themselves, for one row or for several that see one sequence; a second kernel merges them in
/// order. Source of the split: Dao et al. 2023, "Flash-Decoding"; of the online softmax: Milakov and Gimelshein 2018
/// (arXiv:1805.02867).
#include <cstddef>
#include <cstdint>

#include "frugal/device/cuda/async_copy.cuh"
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
    int rows;
    int head_stride;  ///< of q, in floats
    int group, kv_heads, head_dim;
    int kv_elements;  ///< of one key-value head of a token
    int spans;        ///< for which `partial` has room in every row
    float scale;
    float* partial;  ///< [rows][kv_heads * group][spans][head_dim + 2]: unnormalised output, greatest score, sum of weights
};

/// A query is one head of one row.
struct split_query {
    int row, head, keys;  ///< head: of the group of a key-value head; keys: of the span, that it sees
};

template <class Element, int Queries, int Kept>
struct split_shared {
    float4 q[Kept][32];  ///< [query, feature / 4 of a lane][lane], where registers do not hold them all
    float weights[Queries][split_keys];
    const Element* keys[split_keys];
    const Element* values[split_keys];
    split_query of[Queries];
};

inline constexpr int split_batches = 3;  ///< of eight queries, that rows which see one sequence share keys by

/// One span of keys for up to Heads * Batches queries of one key-value head; a block reads each key and value once. With one
/// batch they are heads of one row. With more they are queries, in the order of rows and of heads within, of rows that see keys
/// of one cache and have no lists. Features: of a head, 32 a lane's worth; Whole where a head has exactly 32 * Features. Grid:
/// [spans, key-value heads * slices of Heads, rows], or [spans, key-value heads, queries / (Heads * Batches), rounded up]. The
/// bits of a query are the same whatever it shares a block with.
template <class Scalar, int Heads, int Features, bool Whole, int Batches = 1>
__global__ void __launch_bounds__(32 * split_warps, 1)
    attend_spans(split_arguments a, const split_row<Scalar>* __restrict__ rows) {
    using element = typename stored_features<Scalar>::element;
    constexpr int at_once = 32 / Heads;  // keys that a warp scores together
    constexpr bool together = Batches > 1;
    constexpr int most_queries = Heads * Batches, quads = Features / 4;
    auto& shared = device::gpu::block_shared<split_shared<element, most_queries, together ? most_queries * quads : 1>>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int slices = together ? 1 : (a.group + Heads - 1) / Heads, place = static_cast<int>(blockIdx.z);
    const int kv_head = static_cast<int>(blockIdx.y) / slices, first_head = static_cast<int>(blockIdx.y) % slices * Heads;
    const int queries = (min)(most_queries, together ? a.rows * a.group - place * most_queries : a.group - first_head);
    const auto begin = static_cast<std::uint32_t>(blockIdx.x) * split_keys;
    const auto query = [&](int i) {
        const int number = place * most_queries + (min)(i, queries - 1);
        split_query out{together ? number / a.group : place, together ? number % a.group : first_head + i, 0};
        const std::uint32_t visible = rows[out.row].visible;
        if (visible > begin) out.keys = static_cast<int>((min)(static_cast<unsigned>(split_keys), visible - begin));
        return out;
    };
    const split_row<Scalar>& row = rows[query(0).row];
    int keys = query(0).keys, seen_by_all = keys;
    if constexpr (together)
        for (int r = query(0).row + 1; r <= query(queries - 1).row; ++r) {
            const int own = query((r * a.group) - place * most_queries).keys;
            keys = (max)(keys, own);
            seen_by_all = (min)(seen_by_all, own);
        }
    if (keys == 0) return;  // the whole block leaves
    if (together && thread < most_queries) shared.of[thread] = query(thread);

    for (int i = thread; i < split_keys; i += 32 * split_warps) {
        const std::uint32_t at = begin + static_cast<std::uint32_t>((min)(i, keys - 1));
        const std::size_t token = !together && row.list != nullptr ? row.list[at] : at;
        const std::size_t chunk = token >> row.cache.chunk_shift;
        const std::size_t within = (token & ((std::size_t{1} << row.cache.chunk_shift) - 1)) * row.cache.stride +
                                   static_cast<std::size_t>(kv_head) * static_cast<std::size_t>(a.kv_elements);
        shared.keys[i] = row.cache.keys[chunk] + within;
        shared.values[i] = row.cache.values[chunk] + within;
    }
    const auto feature = [&](int i) { return Whole ? lane * Features + i : lane + 32 * i; };
    const auto load_query = [&](int number, float(&out)[Features]) {
        const split_query own = query(number);
        const float* const from =
            a.q + static_cast<std::size_t>(own.row) * a.q_stride +
            static_cast<std::size_t>(kv_head * a.group + own.head) * static_cast<std::size_t>(a.head_stride);
        FRUGAL_UNROLL
        for (int i = 0; i < Features; ++i)
            out[i] = number < queries && (Whole || feature(i) < a.head_dim) ? from[feature(i)] : 0.0f;
    };
    float q[Heads][Features];
    if constexpr (together) {
        for (int i = warp; i < most_queries; i += split_warps) {
            load_query(i, q[0]);
            FRUGAL_UNROLL
            for (int j = 0; j < quads; ++j)
                shared.q[i * quads + j][lane] = float4{q[0][4 * j], q[0][4 * j + 1], q[0][4 * j + 2], q[0][4 * j + 3]};
        }
    } else {
        FRUGAL_UNROLL
        for (int h = 0; h < Heads; ++h) load_query(h, q[h]);
    }
    __syncthreads();  // queries are here, and it is known where the keys are

    for (int first = warp * at_once; first < split_keys; first += split_warps * at_once) {
        float features[at_once][Features];
        FRUGAL_UNROLL
        for (int k = 0; k < at_once; ++k) {
            const element* const key = shared.keys[first + k];
            if constexpr (Whole) {
                load_features(key, lane * Features, features[k]);
            } else {
                FRUGAL_UNROLL
                for (int i = 0; i < Features; ++i) features[k][i] = feature(i) < a.head_dim ? feature_at(key, feature(i)) : 0.0f;
            }
        }
        for (int batch = 0; batch < Batches; ++batch) {
            float dots[32];
            FRUGAL_UNROLL
            for (int h = 0; h < Heads; ++h) {
                if constexpr (together) {
                    FRUGAL_UNROLL
                    for (int j = 0; j < quads; ++j) {
                        const float4 four = shared.q[(batch * Heads + h) * quads + j][lane];
                        q[h][4 * j] = four.x, q[h][4 * j + 1] = four.y, q[h][4 * j + 2] = four.z, q[h][4 * j + 3] = four.w;
                    }
                }
                FRUGAL_UNROLL
                for (int k = 0; k < at_once; ++k) {
                    float dot = 0.0f;
                    FRUGAL_UNROLL
                    for (int i = 0; i < Features; ++i) dot = fmaf(q[h][i], features[k][i], dot);
                    dots[k * Heads + h] = dot;
                }
            }
            const float score = device::gpu::transpose_sum(dots) * a.scale;
            shared.weights[batch * Heads + lane % Heads][first + lane / Heads] = score;
        }
    }
    __syncthreads();  // all scores are here

    const auto query_again = [&](int i) { return together ? shared.of[i] : query(i); };
    const auto partial_of = [&](const split_query& own) {
        const std::size_t head = static_cast<std::size_t>(own.row) * static_cast<std::size_t>(a.kv_heads * a.group) +
                                 static_cast<std::size_t>(kv_head * a.group + own.head);
        return a.partial + (head * static_cast<std::size_t>(a.spans) + blockIdx.x) * static_cast<std::size_t>(a.head_dim + 2);
    };
    for (int i = warp; i < queries; i += split_warps) {
        const split_query own = query_again(i);
        if (own.keys == 0) continue;
        float most = -INFINITY, sum = 0.0f;
        for (int k = lane; k < own.keys; k += 32) most = fmaxf(most, shared.weights[i][k]);
        most = device::gpu::lane_max(most);
        for (int k = lane; k < own.keys; k += 32) {
            const float weight = expf(shared.weights[i][k] - most);
            shared.weights[i][k] = weight;
            sum += weight;
        }
        sum = device::gpu::lane_sum(sum);
        if (lane == 0) {
            partial_of(own)[a.head_dim] = most;
            partial_of(own)[a.head_dim + 1] = sum;
        }
    }
    __syncthreads();  // all weights are here

    constexpr int pack = Whole && Features == 8 ? 2 : 1;  // neighbouring features of a thread
    for (int d = thread * pack; d < a.head_dim; d += 32 * split_warps * pack) {
        float sums[most_queries][pack];
        FRUGAL_UNROLL
        for (int i = 0; i < most_queries; ++i) {
            FRUGAL_UNROLL
            for (int j = 0; j < pack; ++j) sums[i][j] = 0.0f;
        }
        int k = 0;
        if constexpr (together) {  // weights of four keys by one load
            for (; k + 4 <= seen_by_all; k += 4) {
                float value[4][pack];
                FRUGAL_UNROLL
                for (int next = 0; next < 4; ++next) load_features(shared.values[k + next], d, value[next]);
                FRUGAL_UNROLL
                for (int i = 0; i < most_queries; ++i) {
                    const float4 weight = *reinterpret_cast<const float4*>(&shared.weights[i][k]);
                    FRUGAL_UNROLL
                    for (int j = 0; j < pack; ++j) {
                        sums[i][j] = fmaf(weight.x, value[0][j], sums[i][j]);
                        sums[i][j] = fmaf(weight.y, value[1][j], sums[i][j]);
                        sums[i][j] = fmaf(weight.z, value[2][j], sums[i][j]);
                        sums[i][j] = fmaf(weight.w, value[3][j], sums[i][j]);
                    }
                }
            }
        }
        for (; k < keys; ++k) {
            float value[pack];
            load_features(shared.values[k], d, value);
            FRUGAL_UNROLL
            for (int i = 0; i < most_queries; ++i) {
                if (together && k >= shared.of[i].keys) continue;
                FRUGAL_UNROLL
                for (int j = 0; j < pack; ++j) sums[i][j] = fmaf(shared.weights[i < queries ? i : 0][k], value[j], sums[i][j]);
            }
        }
        FRUGAL_UNROLL
        for (int i = 0; i < most_queries; ++i) {
            if (i >= queries) continue;
            const split_query own = query_again(i);
            if (own.keys == 0) continue;
            FRUGAL_UNROLL
            for (int j = 0; j < pack; ++j) partial_of(own)[d + j] = sums[i][j];
        }
    }
}

inline constexpr int merge_threads = 128;  ///< also spans that are on their way while those before them are added

struct merge_shared {
    float values[2][merge_threads][32];
    float weights[2][merge_threads], sums[2][merge_threads];
    float greatest[merge_threads / 32];
};

/// y[row][head] from the spans of a row, added in order: 32 features a block, one a lane of its first warp, while the others
/// see to the weights and fetch. Grid: [heads, rows, features / 32, rounded up].
template <class Scalar>
__global__ void __launch_bounds__(merge_threads)
    merge_spans(const float* __restrict__ partial, int spans, int head_dim, const split_row<Scalar>* __restrict__ rows,
                float* __restrict__ y, std::size_t y_stride) {
    namespace gpu = device::gpu;
    auto& shared = gpu::block_shared<merge_shared>();
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int feature = static_cast<int>(blockIdx.z) * 32 + lane;
    const auto visible = static_cast<int>((rows[blockIdx.y].visible + split_keys - 1) / split_keys);
    const std::size_t head = blockIdx.y * static_cast<std::size_t>(gridDim.x) + blockIdx.x;
    const float* const own = partial + head * static_cast<std::size_t>(spans) * static_cast<std::size_t>(head_dim + 2);
    const auto span = [&](int s) { return own + static_cast<std::size_t>(s) * static_cast<std::size_t>(head_dim + 2); };

    float most = -INFINITY;
    for (int s = thread; s < visible; s += merge_threads) most = fmaxf(most, span(s)[head_dim]);
    most = gpu::lane_max(most);
    if (lane == 0) shared.greatest[warp] = most;
    __syncthreads();  // each warp's greatest score is here
    FRUGAL_UNROLL
    for (int w = 0; w < merge_threads / 32; ++w) most = fmaxf(most, shared.greatest[w]);

    float greatest = 0.0f, of_weights = 0.0f;  // of this thread's span of those on their way
    const auto fetch = [&](int first, int buffer) {
        if (feature < head_dim)
            for (int i = warp; i < (min)(merge_threads, visible - first); i += merge_threads / 32)
                gpu::async_copy_4(&shared.values[buffer][i][lane], span(first + i) + feature);
        gpu::async_copy_commit();
        if (first + thread < visible) {
            greatest = span(first + thread)[head_dim];
            of_weights = span(first + thread)[head_dim + 1];
        }
    };
    if (visible != 0) fetch(0, 0);
    float value = 0.0f, sum = 0.0f;
    for (int first = 0, buffer = 0; first < visible; first += merge_threads, buffer ^= 1) {
        if (first + thread < visible) {
            shared.weights[buffer][thread] = expf(greatest - most);
            shared.sums[buffer][thread] = of_weights;
        }
        gpu::async_copy_wait<0>();
        __syncthreads();  // these spans are here, and those before them are added
        if (first + merge_threads < visible) fetch(first + merge_threads, buffer ^ 1);
        if (warp == 0 && feature < head_dim)
            for (int i = 0; i < (min)(merge_threads, visible - first); ++i) {
                value = fmaf(shared.weights[buffer][i], shared.values[buffer][i][lane], value);
                sum = fmaf(shared.weights[buffer][i], shared.sums[buffer][i], sum);
            }
    }
    if (warp == 0 && feature < head_dim)
        y[blockIdx.y * y_stride + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(head_dim) +
          static_cast<std::size_t>(feature)] = visible == 0 ? 0.0f : value / sum;
}

template <class Scalar>
cudaError_t split_attention(matrix_view<const float> q, const split_heads& shape, float scale, const split_row<Scalar>* rows,
                            std::size_t visible, float* partial, matrix_view<float> y, cudaStream_t stream, row_keys keys) {
    if (q.rows() == 0) return cudaSuccess;
    if (shape.head_dim > static_cast<std::size_t>(split_most_dim) || shape.head_dim % stored_features<Scalar>::block != 0)
        return cudaErrorInvalidValue;
    const std::size_t spans = (visible + split_keys - 1) / split_keys, group = shape.heads / shape.kv_heads;
    const split_arguments a{q.data(),
                            q.stride(),
                            static_cast<int>(q.rows()),
                            static_cast<int>(q.cols() / shape.heads),
                            static_cast<int>(group),
                            static_cast<int>(shape.kv_heads),
                            static_cast<int>(shape.head_dim),
                            static_cast<int>(stored_features<Scalar>::elements(shape.head_dim)),
                            static_cast<int>(spans),
                            scale,
                            partial};
    const auto start = [&](auto kernel, std::size_t of_kv_heads, std::size_t places) {
        const dim3 grid(static_cast<unsigned>(spans), static_cast<unsigned>(of_kv_heads), static_cast<unsigned>(places));
        return device::gpu::launch(kernel, grid, dim3(32 * split_warps), 0, stream, a, rows);
    };
    const auto start_heads = [&]<int Features, bool Whole>() {
        // Rows share keys where their queries are enough to fill most of a block.
        constexpr std::size_t together = 8 * split_batches;
        if (keys == row_keys::of_one_sequence && q.rows() > 1 && q.rows() * group >= 16)
            return start(attend_spans<Scalar, 8, Features, Whole, split_batches>, shape.kv_heads,
                         (q.rows() * group + together - 1) / together);
        if (group <= 4) return start(attend_spans<Scalar, 4, Features, Whole>, shape.kv_heads, q.rows());
        return start(attend_spans<Scalar, 8, Features, Whole>, shape.kv_heads * ((group + 7) / 8), q.rows());
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
    return device::gpu::launch(merge_spans<Scalar>,
                               dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(q.rows()),
                                    static_cast<unsigned>((shape.head_dim + 31) / 32)),
                               dim3(merge_threads), 0, stream, partial, static_cast<int>(spans), static_cast<int>(shape.head_dim),
                               rows, y.data(), y.stride());
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END

#pragma once
/// The gated delta rule on a GPU, a chunk of tokens at a time: a prefill. With D(t, s) the decay from token s to token t and
/// D(t, -1) that from the chunk's start, the corrections of a chunk solve
///   delta_t = beta_t (v_t - D(t, -1) S' k_t - sum over s < t of D(t, s) (k_t . k_s) delta_s),
/// and its outputs and the state behind it are
///   out_t = D(t, -1) S' q_t + sum over s <= t of D(t, s) (q_t . k_s) delta_s,
///   S = D(n - 1, -1) S + sum over s of D(n - 1, s) k_s delta_s'.
/// All in f32; or the products with keys and queries by matrix units, of numbers split into two bfloat16 each. Source: Yang,
/// Wang, Zhang, Shen, Kim 2024 (arXiv:2406.06484); Yang, Kautz, Hatamizadeh 2024 (arXiv:2412.06464).
#include <cstddef>

#include "frugal/device/cuda/portable.cuh"
#include "frugal/device/cuda/tensor_core.cuh"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.cuh"
#include "frugal/ops/gated_delta_rule/policies.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

inline constexpr int delta_chunk = 32;              ///< tokens of a chunk: one a lane where the corrections are solved
inline constexpr int delta_most_chunked_key = 224;  ///< key features whose chunk fits the shared memory of every architecture
inline constexpr int delta_most_tiled_key = 208;    ///< the same by matrix units

/// A block's shared memory, in floats. Rows of keys and queries are whole vectors of four, an odd number of them, so that
/// equal places of different rows lie in different banks.
struct delta_chunk_room {
    static constexpr int pitch = delta_chunk + 1, query_pitch = delta_chunk + 4;
    int quads, key_pitch;  ///< vectors that hold the key features; floats from one token to the next
    float *q, *k;          ///< [tokens][key_pitch]
    float* state;          ///< [key features][columns]
    float* delta;          ///< [tokens][pitch]: a column a value feature
    float* key_key;        ///< [t][pitch]: beta_t D(t, s) (k_t . k_s), s < t
    float* query_key;      ///< [t][query_pitch]: D(t, s) (q_t . k_s), s <= t
    float *decay, *beta;   ///< [tokens]
    float* to_end;         ///< [tokens]: D(n - 1, s); behind it D(n - 1, -1)
    float* read;           ///< [tokens][pitch]: S' q_t, where matrix units make it

    /// How many floats all of it takes; `at` is where it lies.
    FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE int place(int key_dim, bool tiles, float* at) {
        quads = (key_dim + 3) / 4;
        key_pitch = 4 * (quads | 1);
        int taken = 0;
        const auto take = [&](float*& part, int floats) {
            part = at + taken;
            taken += floats;
        };
        take(q, delta_chunk * key_pitch);
        take(k, delta_chunk * key_pitch);
        take(state, 4 * quads * delta_columns);
        take(query_key, delta_chunk * query_pitch);
        take(delta, delta_chunk * pitch);
        take(key_key, delta_chunk * pitch);
        take(decay, delta_chunk);
        take(beta, delta_chunk);
        take(to_end, delta_chunk + 1);
        take(read, tiles ? delta_chunk * pitch : 0);
        return taken;
    }
};

FRUGAL_DEVICE float dot(const float4& a, const float4& b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/// The products of a chunk's keys and queries with its keys and with the state, by matrix units, into key_key, query_key, delta
/// and read: a warp has 16 rows of keys or of queries, and all columns of the one or the other.
FRUGAL_DEVICE void tile_chunk_products(const delta_chunk_room& room, int warp, int lane) {
    namespace gpu = device::gpu;
    const int across = lane / 4, pair = lane % 4 * 2, features = 4 * room.quads, row = warp / 2 % 2 * 16 + across;
    const bool of_queries = warp >= delta_parts / 2, with_state = warp % 2 != 0;
    const float* const rows = (of_queries ? room.q : room.k) + row * room.key_pitch;
    gpu::fragment_c sum[delta_chunk / 8];
    FRUGAL_UNROLL
    for (int n = 0; n < delta_chunk / 8; ++n) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) sum[n].x[i] = 0.0f;
    }
    const auto two = [&](const float* from, int feature) {
        if (feature >= features) return gpu::split_bf16(0.0f, 0.0f);
        return gpu::split_bf16(from[feature], from[feature + 1]);
    };
    for (int i = pair; i < features + pair; i += 16) {
        gpu::split_fragment_a a;
        FRUGAL_UNROLL
        for (int x = 0; x < 4; ++x) a.set(x, two(rows + x % 2 * 8 * room.key_pitch, i + x / 2 * 8));
        FRUGAL_UNROLL
        for (int n = 0; n < delta_chunk / 8; ++n) {
            gpu::split_fragment_b b;
            FRUGAL_UNROLL
            for (int x = 0; x < 2; ++x) {
                const int feature = i + 8 * x;
                const float* const column = room.state + feature * delta_columns + 8 * n + across;
                if (!with_state)
                    b.set(x, two(room.k + (8 * n + across) * room.key_pitch, feature));
                else if (feature < features)
                    b.set(x, gpu::split_bf16(column[0], column[delta_columns]));
                else
                    b.set(x, gpu::split_bf16(0.0f, 0.0f));
            }
            gpu::multiply_add(sum[n], a, b);
        }
    }
    float* const to = of_queries ? (with_state ? room.read : room.query_key) : (with_state ? room.delta : room.key_key);
    const int pitch = of_queries && !with_state ? room.query_pitch : room.pitch;
    FRUGAL_UNROLL
    for (int n = 0; n < delta_chunk / 8; ++n) {
        FRUGAL_UNROLL
        for (int i = 0; i < 4; ++i) to[(row + i / 2 * 8) * pitch + 8 * n + pair + i % 2] = sum[n].x[i];
    }
}

/// The state behind a chunk, by matrix units: a warp has every eighth 16 key features.
FRUGAL_DEVICE void tile_state(const delta_chunk_room& room, int warp, int lane) {
    namespace gpu = device::gpu;
    const int across = lane / 4, pair = lane % 4 * 2, features = 4 * room.quads;
    const float decay = room.to_end[delta_chunk];
    for (int first = 16 * warp; first < features; first += 16 * delta_parts) {
        const auto place = [&](int n, int i) { return (first + across + i / 2 * 8) * delta_columns + 8 * n + pair + i % 2; };
        const auto inside = [&](int i) { return first + across + i / 2 * 8 < features; };
        gpu::fragment_c sum[delta_columns / 8];
        FRUGAL_UNROLL
        for (int n = 0; n < delta_columns / 8; ++n) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) sum[n].x[i] = inside(i) ? decay * room.state[place(n, i)] : 0.0f;
        }
        FRUGAL_UNROLL
        for (int begin = 0; begin < delta_chunk; begin += 16) {
            gpu::split_fragment_a a;
            FRUGAL_UNROLL
            for (int x = 0; x < 4; ++x) {
                const float* const key = room.k + (begin + pair + x / 2 * 8) * room.key_pitch + first + across + x % 2 * 8;
                a.set(x, inside(2 * (x % 2)) ? gpu::split_bf16(key[0], key[room.key_pitch]) : gpu::split_bf16(0.0f, 0.0f));
            }
            FRUGAL_UNROLL
            for (int n = 0; n < delta_columns / 8; ++n) {
                gpu::split_fragment_b b;
                FRUGAL_UNROLL
                for (int x = 0; x < 2; ++x) {
                    const int t = begin + pair + 8 * x;
                    const float* const delta = room.delta + t * room.pitch + 8 * n + across;
                    b.set(x, gpu::split_bf16(room.to_end[t] * delta[0], room.to_end[t + 1] * delta[room.pitch]));
                }
                gpu::multiply_add(sum[n], a, b);
            }
        }
        FRUGAL_UNROLL
        for (int n = 0; n < delta_columns / 8; ++n) {
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i)
                if (inside(i)) room.state[place(n, i)] = sum[n].x[i];
        }
    }
}

/// A block has 32 value features of one head, whose state lies in shared memory. Warp w has tokens 4 * w … + 3 of a chunk, a
/// lane a value feature; in the products of keys a lane is the other token. Grid: delta_grid; dynamic shared memory:
/// delta_chunk_room. No number of a token reaches an earlier one. Tiles: whether matrix units make the products.
template <class Pairing, bool Tiles>
__global__ void __launch_bounds__(32 * delta_parts, 1) delta_rule_chunks(delta_arguments a) {
    namespace gpu = device::gpu;
    constexpr int own = delta_chunk / delta_parts, threads = 32 * delta_parts;
    delta_chunk_room room;
    room.place(a.key_dim, Tiles, gpu::dynamic_shared<float>());
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, head = static_cast<int>(blockIdx.y);
    const int column = static_cast<int>(blockIdx.x) * delta_columns + lane, features = 4 * room.quads;
    const bool inside = column < a.value_dim;
    const auto key_head = static_cast<int>(Pairing::key_head(
        static_cast<std::size_t>(head), static_cast<std::size_t>(a.key_heads), static_cast<std::size_t>(a.value_heads)));
    const auto first_key = static_cast<std::size_t>(key_head) * static_cast<std::size_t>(a.key_dim);
    const auto value_at =
        static_cast<std::size_t>(head) * static_cast<std::size_t>(a.value_dim) + static_cast<std::size_t>(column);
    float* const state =
        a.state + static_cast<std::size_t>(head) * static_cast<std::size_t>(a.key_dim) * static_cast<std::size_t>(a.value_dim) +
        static_cast<std::size_t>(inside ? column : 0) * static_cast<std::size_t>(a.value_stride);
    for (int i = warp; i < features; i += delta_parts)
        room.state[i * delta_columns + lane] =
            inside && i < a.key_dim ? state[static_cast<std::size_t>(i) * static_cast<std::size_t>(a.key_stride)] : 0.0f;

    for (int begin = 0; begin < a.tokens; begin += delta_chunk) {
        // Tokens that a last chunk lacks are zeros that neither decay nor correct.
        const int n = (min)(delta_chunk, a.tokens - begin);
        for (int i = thread; i < delta_chunk * features; i += threads) {
            const int t = i / features, f = i % features;
            const bool valid = t < n && f < a.key_dim;
            const auto row = static_cast<std::size_t>(begin + t), at = first_key + static_cast<std::size_t>(f);
            room.q[t * room.key_pitch + f] = valid ? a.q[row * a.q_stride + at] : 0.0f;
            room.k[t * room.key_pitch + f] = valid ? a.k[row * a.k_stride + at] : 0.0f;
        }
        if (warp == 0) {
            const std::size_t gate = static_cast<std::size_t>(begin + lane) * a.gate_stride + static_cast<std::size_t>(head);
            room.decay[lane] = lane < n ? expf(a.g[gate]) : 1.0f;
            room.beta[lane] = lane < n ? a.beta[gate] : 0.0f;
        }
        float value[own];
        FRUGAL_UNROLL
        for (int j = 0; j < own; ++j) {
            const int t = own * warp + j;
            value[j] = inside && t < n ? a.v[static_cast<std::size_t>(begin + t) * a.v_stride + value_at] : 0.0f;
        }
        __syncthreads();  // the chunk, and at first the state, are here

        float keys[own], queries[own], predicted[own], read[own];
        FRUGAL_UNROLL
        for (int j = 0; j < own; ++j) keys[j] = queries[j] = predicted[j] = read[j] = 0.0f;
        if constexpr (Tiles) {
            tile_chunk_products(room, warp, lane);
            __syncthreads();  // the products are here
            FRUGAL_UNROLL
            for (int j = 0; j < own; ++j) {
                const int t = own * warp + j;
                keys[j] = room.key_key[t * room.pitch + lane];
                queries[j] = room.query_key[t * room.query_pitch + lane];
                predicted[j] = room.delta[t * room.pitch + lane];
                read[j] = room.read[t * room.pitch + lane];
            }
        }
        for (int i = 0; !Tiles && i < room.quads; ++i) {
            const auto four = [&](const float* rows, int t) {
                return *reinterpret_cast<const float4*>(rows + t * room.key_pitch + 4 * i);
            };
            const float* const s = room.state + 4 * i * delta_columns + lane;
            const float4 of_state{s[0], s[delta_columns], s[2 * delta_columns], s[3 * delta_columns]}, other = four(room.k, lane);
            FRUGAL_UNROLL
            for (int j = 0; j < own; ++j) {
                const float4 k = four(room.k, own * warp + j), q = four(room.q, own * warp + j);
                keys[j] = dot(k, other, keys[j]);
                queries[j] = dot(q, other, queries[j]);
                predicted[j] = dot(k, of_state, predicted[j]);
                read[j] = dot(q, of_state, read[j]);
            }
        }
        // Decays are running products of exp(g) <= 1, as in the token rule: differences of a cumulative sum lose digits.
        float since = 1.0f, from_start = 1.0f;  // of token `lane`, of the chunk's start
        for (int t = 0; t < own * warp; ++t) {
            const float decay = room.decay[t];
            from_start *= decay;
            if (t > lane) since *= decay;
        }
        FRUGAL_UNROLL
        for (int j = 0; j < own; ++j) {
            const int t = own * warp + j;
            const float decay = room.decay[t], beta = room.beta[t];
            from_start *= decay;
            if (t > lane) since *= decay;
            room.key_key[t * room.pitch + lane] = beta * since * keys[j];
            room.query_key[t * room.query_pitch + lane] = since * queries[j];
            room.delta[t * room.pitch + lane] = beta * fmaf(-from_start, predicted[j], value[j]);
            read[j] *= from_start;
        }
        if (warp == delta_parts - 1) {
            room.to_end[lane] = since;
            if (lane == 0) room.to_end[delta_chunk] = from_start;
        }
        __syncthreads();  // what the corrections are solved from is here

        float delta[own];  // of token `lane`, of columns own * warp …
        FRUGAL_UNROLL
        for (int j = 0; j < own; ++j) delta[j] = room.delta[lane * room.pitch + own * warp + j];
        for (int s = 0; s < n; ++s) {
            const float weight = room.key_key[lane * room.pitch + s];
            FRUGAL_UNROLL
            for (int j = 0; j < own; ++j) {
                const float earlier = __shfl_sync(gpu::full_warp, delta[j], s);
                if (lane > s) delta[j] = fmaf(-weight, earlier, delta[j]);
            }
        }
        FRUGAL_UNROLL
        for (int j = 0; j < own; ++j) room.delta[lane * room.pitch + own * warp + j] = delta[j];
        __syncthreads();  // the corrections are here

        for (int s = 0; s < own * (warp + 1); s += 4) {
            float correction[4];
            FRUGAL_UNROLL
            for (int i = 0; i < 4; ++i) correction[i] = room.delta[(s + i) * room.pitch + lane];
            FRUGAL_UNROLL
            for (int j = 0; j < own; ++j) {
                const int t = own * warp + j;
                const float4 four = *reinterpret_cast<const float4*>(room.query_key + t * room.query_pitch + s);
                const float weight[4] = {four.x, four.y, four.z, four.w};
                FRUGAL_UNROLL
                for (int i = 0; i < 4; ++i)
                    if (s + i <= t) read[j] = fmaf(weight[i], correction[i], read[j]);
            }
        }
        FRUGAL_UNROLL
        for (int j = 0; j < own; ++j) {
            const int t = own * warp + j;
            if (inside && t < n) a.out[static_cast<std::size_t>(begin + t) * a.out_stride + value_at] = read[j] * a.scale;
        }
        if constexpr (Tiles) tile_state(room, warp, lane);
        // The warp's share of the state: every eighth vector of key features, four of these at once.
        constexpr int at_once = 4;
        const float decay = room.to_end[delta_chunk];
        for (int first = warp; !Tiles && first < room.quads; first += at_once * delta_parts) {
            float sums[at_once][4];
            FRUGAL_UNROLL
            for (int p = 0; p < at_once; ++p) {
                const int quad = first + p * delta_parts;
                FRUGAL_UNROLL
                for (int i = 0; i < 4; ++i)
                    sums[p][i] = quad < room.quads ? decay * room.state[(4 * quad + i) * delta_columns + lane] : 0.0f;
            }
            for (int t = 0; t < n; ++t) {
                const float correction = room.to_end[t] * room.delta[t * room.pitch + lane];
                FRUGAL_UNROLL
                for (int p = 0; p < at_once; ++p) {
                    const int quad = (min)(first + p * delta_parts, room.quads - 1);
                    const float4 k = *reinterpret_cast<const float4*>(room.k + t * room.key_pitch + 4 * quad);
                    sums[p][0] = fmaf(k.x, correction, sums[p][0]);
                    sums[p][1] = fmaf(k.y, correction, sums[p][1]);
                    sums[p][2] = fmaf(k.z, correction, sums[p][2]);
                    sums[p][3] = fmaf(k.w, correction, sums[p][3]);
                }
            }
            FRUGAL_UNROLL
            for (int p = 0; p < at_once; ++p) {
                const int quad = first + p * delta_parts;
                FRUGAL_UNROLL
                for (int i = 0; i < 4; ++i)
                    if (quad < room.quads) room.state[(4 * quad + i) * delta_columns + lane] = sums[p][i];
            }
        }
        __syncthreads();  // nobody needs the chunk any more, and the state is whole
    }
    for (int i = warp; i < a.key_dim; i += delta_parts)
        if (inside)
            state[static_cast<std::size_t>(i) * static_cast<std::size_t>(a.key_stride)] = room.state[i * delta_columns + lane];
}

template <head_pairing_policy Pairing, bool Tiles>
[[nodiscard]] cudaError_t start_chunks(const delta_rule_dims& dims, const delta_arguments& a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    delta_chunk_room room;
    const int floats = room.place(a.key_dim, Tiles, nullptr);
    return device::gpu::launch(delta_rule_chunks<Pairing, Tiles>, delta_grid(dims), dim3(32 * delta_parts),
                               static_cast<std::size_t>(floats) * sizeof(float), stream, a);
}

template <head_pairing_policy Pairing, state_layout_policy Layout>
cudaError_t gated_delta_rule_chunked(const delta_rule_dims& dims, matrix_view<const float> q, matrix_view<const float> k,
                                     matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                     float* state, matrix_view<float> out, cudaStream_t stream) {
    if (dims.key_dim > static_cast<std::size_t>(delta_most_chunked_key))
        return gated_delta_rule<Pairing, Layout>(dims, q, k, v, g, beta, state, out, stream);
    return start_chunks<Pairing, false>(dims, delta_arguments_of<Layout>(dims, q, k, v, g, beta, state, out), stream);
}

template <head_pairing_policy Pairing, state_layout_policy Layout>
cudaError_t gated_delta_rule_tiles(const delta_rule_dims& dims, matrix_view<const float> q, matrix_view<const float> k,
                                   matrix_view<const float> v, matrix_view<const float> g, matrix_view<const float> beta,
                                   float* state, matrix_view<float> out, cudaStream_t stream) {
    if (dims.key_dim > static_cast<std::size_t>(delta_most_tiled_key))
        return gated_delta_rule_chunked<Pairing, Layout>(dims, q, k, v, g, beta, state, out, stream);
    return start_chunks<Pairing, true>(dims, delta_arguments_of<Layout>(dims, q, k, v, g, beta, state, out), stream);
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END

#pragma once
/// Warp-wide matrix operations (PTX mma.sync, ldmatrix) as functions. All 32 lanes must call them together.

#include <cstdint>

#include "frugal/device/cuda/portable.cuh"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// A lane's share of the operands of D[16x8] = A[16x16] B[16x8] + C[16x8], bf16 in, f32 out. With `row = lane / 4`, `pair =
/// lane % 4 * 2`: A.x[0] = A(row, pair..pair+1), x[1] = A(row + 8, ..), x[2] = A(row, pair + 8..), x[3] = A(row + 8, pair +
/// 8..); B.x[0] = B(pair..pair+1, row), x[1] = B(pair + 8.., row);  C.x[0..1] = C(row, pair..), x[2..3] = C(row + 8, pair..).
/// Lower index in the lower half of the register. Source: PTX ISA, "Matrix Fragments for mma.m16n8k16".
struct fragment_a {
    std::uint32_t x[4];
};
struct fragment_b {
    std::uint32_t x[2];
};
struct fragment_c {
    float x[4];
};

#if !defined(__CUDACC__)
namespace emulated {
struct mma_record {
    fragment_c* c;
    const fragment_a* a;
    const fragment_b* b;
};
inline float bf16_at(std::uint32_t word, int half) { return __uint_as_float(half == 0 ? word << 16 : word & 0xFFFF0000u); }
inline void mma_bf16(simt::warp_view& view) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const auto& r = *static_cast<mma_record*>(view.record[lane]);
        const int row = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 2; ++i) {
            for (int x = 0; x < 4; ++x) a[row + x % 2 * 8][pair + x / 2 * 8 + i] = bf16_at(r.a->x[x], i);
            for (int x = 0; x < 2; ++x) b[pair + x * 8 + i][row] = bf16_at(r.b->x[x], i);
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const auto& r = *static_cast<mma_record*>(view.record[lane]);
        for (int x = 0; x < 4; ++x) {
            const int row = lane / 4 + x / 2 * 8, column = lane % 4 * 2 + x % 2;
            double sum = double(r.c->x[x]);
            for (int k = 0; k < 16; ++k) sum += double(a[row][k]) * double(b[k][column]);
            r.c->x[x] = float(sum);  // one rounding; a device may round and order differently
        }
    }
}
struct matrix_record {
    const void* row;
    std::uint32_t* out;
};
template <int Matrices, bool Transposed>
void load_matrix(simt::warp_view& view) {
    std::uint16_t m[Matrices][8][8];
    for (int lane = 0; lane < 8 * Matrices; ++lane)
        std::memcpy(m[lane / 8][lane % 8], static_cast<matrix_record*>(view.record[lane])->row, 16);
    for (int lane = 0; lane < 32; ++lane) {
        auto* out = static_cast<matrix_record*>(view.record[lane])->out;
        const int row = lane / 4, pair = lane % 4 * 2;
        for (int x = 0; x < Matrices; ++x)
            out[x] = Transposed ? std::uint32_t(m[x][pair][row]) | std::uint32_t(m[x][pair + 1][row]) << 16
                                : std::uint32_t(m[x][row][pair]) | std::uint32_t(m[x][row][pair + 1]) << 16;
    }
}
}  // namespace emulated
#endif

/// c += a b.
FRUGAL_DEVICE void multiply_add(fragment_c& c, const fragment_a& a, const fragment_b& b) {
#if defined(__CUDACC__)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
#else
    emulated::mma_record record{&c, &a, &b};
    simt::converge(full_warp, &record, &emulated::mma_bf16, "multiply_add", simt::where::here());
#endif
}

/// A lane's share of D[16x8] = A[16x32] B[32x8] + C[16x8] of signed bytes with 32-bit sums. With `row = lane / 4`, `quad = lane
/// % 4 * 4`: A.x[0] = A(row, quad..quad+3), x[1] = A(row + 8, ..), x[2] = A(row, quad + 16..), x[3] = A(row + 8, quad + 16..);
/// B.x[0] = B(quad.., row), x[1] = B(quad + 16.., row); sums as in fragment_c. Lower index in the lower byte. Source: PTX ISA,
/// "Matrix Fragments for mma.m16n8k32", and for 16 columns "… for mma.m16n8k16" of .s8.
struct fragment_sums {
    int x[4];
};

#if !defined(__CUDACC__)
namespace emulated {
struct byte_mma_record {
    fragment_sums* c;
    std::uint32_t a[4], b[2];
};
/// `Columns`: 32, or 16, where a[0], a[1] and b[0] are all there is.
template <int Columns>
void mma_bytes(simt::warp_view& view) {
    const auto byte = [](std::uint32_t word, int i) {
        return static_cast<int>(static_cast<std::int8_t>(static_cast<std::uint8_t>(word >> 8 * i & 0xFFu)));
    };
    int a[16][32], b[32][8];
    for (int lane = 0; lane < 32; ++lane) {
        const auto& r = *static_cast<byte_mma_record*>(view.record[lane]);
        const int row = lane / 4, quad = lane % 4 * 4;
        for (int k = 0; k < Columns; k += 16)
            for (int i = 0; i < 4; ++i) {
                a[row][k + quad + i] = byte(r.a[k / 8], i);
                a[row + 8][k + quad + i] = byte(r.a[k / 8 + 1], i);
                b[k + quad + i][row] = byte(r.b[k / 16], i);
            }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const auto& r = *static_cast<byte_mma_record*>(view.record[lane]);
        for (int x = 0; x < 4; ++x)
            for (int k = 0; k < Columns; ++k) r.c->x[x] += a[lane / 4 + x / 2 * 8][k] * b[k][lane % 4 * 2 + x % 2];
    }
}
}  // namespace emulated
#endif

/// c += a b, 32 columns of signed bytes.
FRUGAL_DEVICE void multiply_add(fragment_sums& c, const fragment_a& a, const fragment_b& b) {
#if defined(__CUDACC__)
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+r"(c.x[0]), "+r"(c.x[1]), "+r"(c.x[2]), "+r"(c.x[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
#else
    emulated::byte_mma_record record{&c, {a.x[0], a.x[1], a.x[2], a.x[3]}, {b.x[0], b.x[1]}};
    simt::converge(full_warp, &record, &emulated::mma_bytes<32>, "multiply_add", simt::where::here());
#endif
}

/// c += a b, 16 columns of signed bytes: A.x[0], A.x[1] and B.x[0] of the above.
FRUGAL_DEVICE void multiply_add(fragment_sums& c, std::uint32_t a_upper, std::uint32_t a_lower, std::uint32_t b) {
#if defined(__CUDACC__)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
                 : "+r"(c.x[0]), "+r"(c.x[1]), "+r"(c.x[2]), "+r"(c.x[3])
                 : "r"(a_upper), "r"(a_lower), "r"(b));
#else
    emulated::byte_mma_record record{&c, {a_upper, a_lower, 0, 0}, {b, 0}};
    simt::converge(full_warp, &record, &emulated::mma_bytes<16>, "multiply_add", simt::where::here());
#endif
}

/// Loads two 8x8 matrices of 16-bit elements from shared memory, transposed: lane `l` < 16 gives the address of row `l % 8` of
/// matrix `l / 8`, 16-byte aligned. The result is a `fragment_b` of a matrix stored with its rows along k. Lanes 16..31 may
/// give any valid row.
FRUGAL_DEVICE fragment_b load_transposed(const void* shared_row) {
    fragment_b out;
#if defined(__CUDACC__)
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared_row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
                 : "=r"(out.x[0]), "=r"(out.x[1])
                 : "r"(address)
                 : "memory");
#else
    if (reinterpret_cast<std::uintptr_t>(shared_row) % 16 != 0) simt::raise(simt::fault::misaligned, "load_transposed");
    simt::note_access(shared_row, 16, simt::access::read);
    emulated::matrix_record record{shared_row, out.x};
    simt::converge(full_warp, &record, &emulated::load_matrix<2, true>, "load_transposed", simt::where::here());
#endif
    return out;
}

/// Two floats rounded to bf16, `low` in the lower half.
FRUGAL_DEVICE std::uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return static_cast<std::uint32_t>(__bfloat16_as_ushort(both.x)) | static_cast<std::uint32_t>(__bfloat16_as_ushort(both.y))
                                                                          << 16;
}

/// Pairs of floats, each as the sum of two bf16: off by at most 2^-18 of itself.
struct split_pair {
    std::uint32_t high, low;
};
FRUGAL_DEVICE split_pair split_bf16(float first, float second) {
    const std::uint32_t high = pack_bf16(first, second);
    return {high, pack_bf16(first - __uint_as_float(high << 16), second - __uint_as_float(high & 0xFFFF0000u))};
}

/// Operands of a product of such sums.
struct split_fragment_a {
    fragment_a high, low;
    FRUGAL_DEVICE void set(int x, split_pair pair) { high.x[x] = pair.high, low.x[x] = pair.low; }
};
struct split_fragment_b {
    fragment_b high, low;
    FRUGAL_DEVICE void set(int x, split_pair pair) { high.x[x] = pair.high, low.x[x] = pair.low; }
};

/// c += a b, less the products of both low parts: off by at most 2^-16 of the sum of its terms' magnitudes, besides the rounding
/// of f32 sums.
FRUGAL_DEVICE void multiply_add(fragment_c& c, const split_fragment_a& a, const split_fragment_b& b) {
    multiply_add(c, a.low, b.high);
    multiply_add(c, a.high, b.low);
    multiply_add(c, a.high, b.high);
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END

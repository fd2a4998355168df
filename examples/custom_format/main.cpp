// A quantization format of your own, without touching the library: a struct, and its name in your quant::list.
//   g++ -std=c++20 -O3 -march=native -I include examples/custom_format/main.cpp -o custom_format && ./custom_format
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"

namespace mine {

/// Weights -scale, 0 and +scale: f32 scale | 32 codes of two bits (0, 1, 2 for -1, 0, +1), lowest bits first.
struct ternary {
    static constexpr std::string_view name = "ternary";
    static constexpr frugal::quant::type_id type{0x10000};  // numbers below belong to GGUF
    static constexpr std::size_t block_size = 32, block_bytes = 12;

    // Forced inline, so that kernels of several instruction sets can share one program.
    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept {
        float scale;
        std::uint64_t codes;
        std::memcpy(&scale, block, sizeof(scale));
        std::memcpy(&codes, block + sizeof(scale), sizeof(codes));
        for (std::size_t i = 0; i < block_size; ++i)
            out[i] = scale * static_cast<float>(static_cast<int>((codes >> (2 * i)) & 3u) - 1);
    }

    /// The scale is the mean magnitude; what is below half of it becomes zero.
    static void encode(const float* in, std::byte* block) noexcept {
        float scale = 0;
        for (std::size_t i = 0; i < block_size; ++i) scale += std::fabs(in[i]) / static_cast<float>(block_size);
        std::uint64_t codes = 0;
        for (std::size_t i = 0; i < block_size; ++i) {
            const std::uint64_t code = std::fabs(in[i]) < scale / 2 ? 1u : (in[i] < 0 ? 0u : 2u);
            codes |= code << (2 * i);
        }
        std::memcpy(block, &scale, sizeof(scale));
        std::memcpy(block + sizeof(scale), &codes, sizeof(codes));
    }
};
static_assert(frugal::quant::encodable_format<ternary>);

/// Files mix formats tensor by tensor, so a program names all that it reads.
using formats = frugal::quant::list<frugal::quant::f32, ternary>;

}  // namespace mine

int main() {
    using mine::ternary;
    constexpr std::size_t rows = 4, cols = 64;
    std::vector<float> original(rows * cols);
    for (std::size_t i = 0; i < original.size(); ++i) original[i] = std::sin(static_cast<float>(i));
    std::vector<std::byte> packed(original.size() / ternary::block_size * ternary::block_bytes);
    for (std::size_t b = 0; b < original.size() / ternary::block_size; ++b)
        ternary::encode(original.data() + b * ternary::block_size, packed.data() + b * ternary::block_bytes);

    const auto stored = std::as_bytes(std::span<const float>(original));
    const auto exact = frugal::quant::make_weight_view<mine::formats>(frugal::quant::f32::type, stored, rows, cols);
    const auto rough = frugal::quant::make_weight_view<mine::formats>(ternary::type, packed, rows, cols);
    // A type outside the list is an error that says so.
    const auto other = frugal::quant::make_weight_view<mine::formats>(frugal::quant::q4_k::type, packed, rows, cols);
    if (!exact || !rough || other) return 1;

    std::vector<float> x(cols), y(rows), y_exact(rows);
    for (std::size_t c = 0; c < cols; ++c) x[c] = std::sin(static_cast<float>(c));
    const frugal::matrix_view<const float> input(x.data(), 1, cols);
    frugal::device::cpu<> device;
    frugal::workspace scratch;
    for (const auto& [weights, out] : {std::pair(*exact, &y_exact), std::pair(*rough, &y)}) {
        const auto done =
            frugal::ops::matmul<mine::formats>(device, scratch, weights, input, frugal::matrix_view(out->data(), 1, rows));
        if (!done) {
            std::fprintf(stderr, "%s\n", done.error().message.c_str());
            return 1;
        }
    }
    std::printf("%zu bytes instead of %zu\n", rough->bytes(), exact->bytes());
    for (std::size_t r = 0; r < rows; ++r)
        std::printf("row %zu: %6.2f, exactly %6.2f\n", r, static_cast<double>(y[r]), static_cast<double>(y_exact[r]));
    std::printf("q4_k: %s\n", other.error().message.c_str());
    return std::fflush(stdout) == 0 ? 0 : 1;
}

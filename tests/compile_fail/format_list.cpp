// fails NO_DECODE: frugal: every member of quant::list must model quant::format: static name, type, block_size, block_bytes and decode(const std::byte*, float*) noexcept; see examples/custom_format
// fails DECODE_MAY_THROW: frugal: every member of quant::list must model quant::format
// fails NO_BLOCK_SIZE: frugal: every member of quant::list must model quant::format
// fails NOT_A_TYPE_NUMBER: frugal: every member of quant::list must model quant::format
#include <cstddef>
#include <string_view>

#include "frugal/quant/list.hpp"

namespace fg = frugal;

struct sign {
    static constexpr std::string_view name = "sign";
#if defined(NOT_A_TYPE_NUMBER)
    static constexpr std::string_view type = "sign";
#else
    static constexpr auto type = static_cast<fg::quant::type_id>(0x10000);
#endif
#if !defined(NO_BLOCK_SIZE)
    static constexpr std::size_t block_size = 8;
#endif
    static constexpr std::size_t block_bytes = 1;
#if defined(DECODE_MAY_THROW)
    static void decode(const std::byte* block, float* out) {
#elif defined(NO_DECODE)
    static void dequantize(const std::byte* block, float* out) noexcept {
#else
    static void decode(const std::byte* block, float* out) noexcept {
#endif
        for (std::size_t i = 0; i < 8; ++i) out[i] = (std::to_integer<unsigned>(*block) >> i & 1u) != 0 ? -1.0f : 1.0f;
    }
};

static_assert(fg::quant::list<sign>::contains<sign>);

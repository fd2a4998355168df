#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/panel/scalars.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// The upper half of a binary32. Encoding rounds to nearest even; NaN stays NaN.
struct bf16 {
    using library_format = bf16;
    static constexpr std::string_view name = "bf16";
    static constexpr type_id type{30};
    static constexpr std::size_t block_size = 1, block_bytes = 2;
    using panel = scalar_panel<bfloat16>;

    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept {
        *out = to_float(bfloat16{static_cast<std::uint16_t>(detail::load_u16(block))});
    }
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept {
        const std::uint16_t bits = to_bfloat16(*in).bits;
        std::memcpy(block, &bits, sizeof(bits));
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept {
        return (detail::load_u16(block) & 0x7F80u) != 0x7F80u;
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

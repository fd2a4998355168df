#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/panel/coded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF IQ4_XS: scale f16 | top bit pairs of 8 group scales u16 | their low nibbles, 4 bytes | 128 bytes of nibbles;
/// w = scale * (group_scale - 32) * level, levels of IQ4_NL, groups of 32 with 16 bytes each in the order of Q4_0.
struct iq4_xs : from_codes<iq4_xs, scaled_codes<256, std::int16_t>> {
    using library_format = iq4_xs;
    static constexpr std::string_view name = "iq4_xs";
    static constexpr type_id type{23};
    static constexpr std::size_t block_bytes = 136;
    using panel = coded_panel<table_codes<detail::nonlinear_levels, 0>, byte_scales<32>, true, 127, 0>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<256, 32> fields(const std::byte* block) noexcept {
        block_fields<256, 32> out;
        out.scale = static_cast<std::uint16_t>(detail::load_u16(block));
        const std::uint32_t top = detail::load_u16(block + 2), low = detail::load_u32(block + 4);
        for (std::size_t g = 0; g < 8; ++g) {
            const std::uint32_t scale = ((low >> (4 * g)) & 0xFu) | (((top >> (2 * g)) & 3u) << 4);
            out.run_scales[g] = static_cast<std::int8_t>(static_cast<int>(scale) - 32);
            detail::load_nibbles(block + 8 + 16 * g, out.codes + 32 * g);
        }
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static grouped_levels<256, 32> split(const std::byte* block) noexcept {
        const auto parts = fields(block);
        grouped_levels<256, 32> out;
        out.scale = detail::load_half(block);
        std::memcpy(out.group_scales, parts.run_scales, sizeof(out.group_scales));
        for (std::size_t i = 0; i < 256; i += 16)
            detail::store_bytes(out.levels + i, detail::look_up(detail::nonlinear_levels, detail::load_bytes(parts.codes + i)));
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        return split(block).multiplied();
    }
    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept { split(block).decode(out); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept { return detail::finite_half(block); }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "frugal/quant/block.hpp"
#include "frugal/quant/codes.hpp"
#include "frugal/quant/encode.hpp"
#include "frugal/quant/format.hpp"
#include "frugal/quant/panel/coded.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// GGUF Q4_1: scale f16 | offset f16 | 16 bytes of nibbles; w = scale * code + offset.
struct q4_1 : from_codes<q4_1, offset_codes<32, 32, std::int8_t>> {
    using library_format = q4_1;
    static constexpr std::string_view name = "q4_1";
    static constexpr type_id type{3};
    static constexpr std::size_t block_bytes = 20;
    using panel = coded_panel<plane_codes<0>, half_scales_and_offsets, false, 15, 0>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = detail::load_half(block);
        out.offset_scale = detail::load_half(block + 2);
        out.offsets[0] = 1;
        detail::load_nibbles(block + 4, 0, out.codes);
        return out;
    }
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept {
        std::uint8_t codes[32];
        const auto fit = detail::encode_offset<15>(in, codes);
        detail::store_half(block, fit.scale);
        detail::store_half(block + 2, fit.offset);
        detail::store_nibbles(block + 4, codes);
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<32, 32> fields(const std::byte* block) noexcept {
        block_fields<32, 32> out;
        out.scale = static_cast<std::uint16_t>(detail::load_u16(block));
        out.offset_scale = static_cast<std::uint16_t>(detail::load_u16(block + 2));
        detail::load_nibbles(block + 4, out.codes);
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept {
        return detail::finite_half(block) && detail::finite_half(block + 2);
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

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

/// GGUF Q5_0: scale f16 | fifth bits u32 | 16 bytes of nibbles; w = scale * (code - 16).
struct q5_0 : from_codes<q5_0, scaled_codes<32, std::int8_t>> {
    using library_format = q5_0;
    static constexpr std::string_view name = "q5_0";
    static constexpr type_id type{6};
    static constexpr std::size_t block_bytes = 22;
    using panel = coded_panel<plane_codes<1>, half_scales, false, 31, 16>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = detail::load_half(block);
        detail::load_five_bits(block + 6, detail::load_u32(block + 2), 16, out.codes);
        return out;
    }
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept {
        std::uint8_t codes[32];
        detail::store_half(block, detail::encode_centred<16>(in, codes));
        detail::store_u32(block + 2, detail::fifth_bits(codes));
        detail::store_nibbles(block + 6, codes);
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<32, 32> fields(const std::byte* block) noexcept {
        block_fields<32, 32> out;
        out.scale = static_cast<std::uint16_t>(detail::load_u16(block));
        detail::load_five_bits(block + 6, detail::load_u32(block + 2), out.codes);
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept { return detail::finite_half(block); }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

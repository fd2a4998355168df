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

/// GGUF IQ4_NL: scale f16 | 16 bytes of nibbles, each an index into 16 fixed levels; w = scale * level.
struct iq4_nl : from_codes<iq4_nl, scaled_codes<32, std::int8_t>> {
    using library_format = iq4_nl;
    static constexpr std::string_view name = "iq4_nl";
    static constexpr type_id type{20};
    static constexpr std::size_t block_bytes = 18;
    using panel = coded_panel<table_codes<detail::nonlinear_levels, 0>, half_scales, true, 127, 0>;

    [[nodiscard]] FRUGAL_ALWAYS_INLINE static codes_type unpack(const std::byte* block) noexcept {
        codes_type out;
        out.scale = detail::load_half(block);
        detail::load_levels(block + 2, detail::nonlinear_levels, out.codes);
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static block_fields<32, 32> fields(const std::byte* block) noexcept {
        block_fields<32, 32> out;
        out.scale = static_cast<std::uint16_t>(detail::load_u16(block));
        detail::load_nibbles(block + 2, out.codes);
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept { return detail::finite_half(block); }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

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

/// IEEE binary16. Encoding rounds to nearest even; NaN stays NaN, magnitudes from 65520 up become infinite.
struct f16 {
    using library_format = f16;
    static constexpr std::string_view name = "f16";
    static constexpr type_id type{1};
    static constexpr std::size_t block_size = 1, block_bytes = 2;
    using panel = scalar_panel<half>;

    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept { *out = detail::load_half(block); }
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept { detail::store_half(block, *in); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept { return detail::finite_half(block); }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

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

/// IEEE binary32, stored as it is.
struct f32 {
    using library_format = f32;
    static constexpr std::string_view name = "f32";
    static constexpr type_id type{0};
    static constexpr std::size_t block_size = 1, block_bytes = 4;
    using panel = scalar_panel<float>;

    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept { std::memcpy(out, block, 4); }
    FRUGAL_ALWAYS_INLINE static void encode(const float* in, std::byte* block) noexcept { std::memcpy(block, in, 4); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static bool finite(const std::byte* block) noexcept {
        return (detail::load_u32(block) & 0x7F800000u) != 0x7F800000u;
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

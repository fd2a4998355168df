#pragma once
/// What the programs that write and read 4-bit tiles of 32 x 256 weights do differently, as one policy.
#include <concepts>
#include <cstdint>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// How a code, a scale and an offset become a weight.
enum class tile_algebra : std::uint8_t {
    additive,     ///< w = scale * code + offset
    subtractive,  ///< w = scale * (code - offset): the offset is a zero point
};

/// What the four bits of a code mean.
enum class code_sign : std::uint8_t {
    unsigned_codes,  ///< 0 … 15
    signed_codes,    ///< -8 … 7 in two's complement
};

/// Where the scale (and the offset) of a row's group of 32 columns lies.
enum class scale_order : std::uint8_t {
    by_group,  ///< [8 groups][32 rows]
    by_row,    ///< [32 rows][8 groups]
};

/// Where the codes lie; two share a byte.
enum class code_order : std::uint8_t {
    lanes,   ///< [2 lanes of 16 rows][256 columns][8 bytes]: byte j holds row 2 j (low nibble) and 2 j + 1 of the lane
    by_row,  ///< [32 rows][128 bytes]: byte j holds column 2 j (low nibble) and 2 j + 1
};

/// A convention of quant::q4nx.
template <class C>
concept q4nx_convention = requires {
    { C::name } -> std::convertible_to<std::string_view>;
    { C::algebra } -> std::convertible_to<tile_algebra>;
    { C::sign } -> std::convertible_to<code_sign>;
    { C::scales } -> std::convertible_to<scale_order>;
    { C::codes } -> std::convertible_to<code_order>;
};

/// FastFlowLM containers of Qwen3, Qwen3.5, Llama, Gemma and most others: GGUF Q4_1 in tiles. The default.
struct q4nx_additive {
    static constexpr std::string_view name = "q4nx";
    static constexpr tile_algebra algebra = tile_algebra::additive;
    static constexpr code_sign sign = code_sign::unsigned_codes;
    static constexpr scale_order scales = scale_order::by_group;
    static constexpr code_order codes = code_order::lanes;
};

/// Older containers, whose tensors have dtype Q4NX.
struct q4nx_subtractive : q4nx_additive {
    static constexpr std::string_view name = "q4nx_subtractive";
    static constexpr tile_algebra algebra = tile_algebra::subtractive;
};

/// Containers of LFM2 and Qwen2: GGUF Q4_0 in tiles. The offset is stored as 0, and added if it is not.
struct q4nx_signed : q4nx_additive {
    static constexpr std::string_view name = "q4nx_signed";
    static constexpr code_sign sign = code_sign::signed_codes;
};

/// Signed codes with the scales of a row side by side, as tiles of Zaya are read.
struct q4nx_signed_row_scales : q4nx_signed {
    static constexpr std::string_view name = "q4nx_signed_row_scales";
    static constexpr scale_order scales = scale_order::by_row;
};

/// Scales and codes row after row: the additive tile before it is put into lanes.
struct q4nx_row_major : q4nx_additive {
    static constexpr std::string_view name = "q4nx_row_major";
    static constexpr scale_order scales = scale_order::by_row;
    static constexpr code_order codes = code_order::by_row;
};

}  // namespace quant

FRUGAL_NAMESPACE_END

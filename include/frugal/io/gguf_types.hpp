#pragma once
/// Type numbers of the GGUF format: value types of metadata, and block sizes of every tensor type known,
/// also of those that no format of this library decodes.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/quant/format.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// Type of a metadata value, with the number that files use.
enum class gguf_value_type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

inline constexpr std::uint32_t gguf_value_type_count = 13;

[[nodiscard]] FRUGAL_FLAGGED constexpr std::string_view to_string(gguf_value_type type) noexcept {
    constexpr std::array<std::string_view, gguf_value_type_count> names = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                                           "bool", "string", "array", "u64", "i64", "f64"};
    const auto index = static_cast<std::size_t>(type);
    return index < names.size() ? names[index] : "?";
}

/// Bytes of one value; 0 for strings and arrays, whose size lies in the file.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t size_of(gguf_value_type type) noexcept {
    constexpr std::array<std::size_t, gguf_value_type_count> sizes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const auto index = static_cast<std::size_t>(type);
    return index < sizes.size() ? sizes[index] : 0;
}

/// A tensor type: a row is cut into blocks of `block_size` elements, `block_bytes` bytes each.
struct FRUGAL_FLAGGED gguf_tensor_type {
    std::uint32_t number;
    std::uint32_t block_size, block_bytes;
    std::string_view name;
};

inline constexpr std::array gguf_tensor_types = {
    gguf_tensor_type{0, 1, 4, "f32"},
    gguf_tensor_type{1, 1, 2, "f16"},
    gguf_tensor_type{2, 32, 18, "q4_0"},
    gguf_tensor_type{3, 32, 20, "q4_1"},
    gguf_tensor_type{6, 32, 22, "q5_0"},
    gguf_tensor_type{7, 32, 24, "q5_1"},
    gguf_tensor_type{8, 32, 34, "q8_0"},
    gguf_tensor_type{9, 32, 36, "q8_1"},
    gguf_tensor_type{10, 256, 84, "q2_k"},
    gguf_tensor_type{11, 256, 110, "q3_k"},
    gguf_tensor_type{12, 256, 144, "q4_k"},
    gguf_tensor_type{13, 256, 176, "q5_k"},
    gguf_tensor_type{14, 256, 210, "q6_k"},
    gguf_tensor_type{15, 256, 292, "q8_k"},
    gguf_tensor_type{16, 256, 66, "iq2_xxs"},
    gguf_tensor_type{17, 256, 74, "iq2_xs"},
    gguf_tensor_type{18, 256, 98, "iq3_xxs"},
    gguf_tensor_type{19, 256, 50, "iq1_s"},
    gguf_tensor_type{20, 32, 18, "iq4_nl"},
    gguf_tensor_type{21, 256, 110, "iq3_s"},
    gguf_tensor_type{22, 256, 82, "iq2_s"},
    gguf_tensor_type{23, 256, 136, "iq4_xs"},
    gguf_tensor_type{24, 1, 1, "i8"},
    gguf_tensor_type{25, 1, 2, "i16"},
    gguf_tensor_type{26, 1, 4, "i32"},
    gguf_tensor_type{27, 1, 8, "i64"},
    gguf_tensor_type{28, 1, 8, "f64"},
    gguf_tensor_type{29, 256, 56, "iq1_m"},
    gguf_tensor_type{30, 1, 2, "bf16"},
    gguf_tensor_type{34, 256, 54, "tq1_0"},
    gguf_tensor_type{35, 256, 66, "tq2_0"},
    gguf_tensor_type{39, 32, 17, "mxfp4"},
    gguf_tensor_type{40, 64, 36, "nvfp4"},
    gguf_tensor_type{41, 128, 18, "q1_0"},
    gguf_tensor_type{42, 64, 18, "q2_0"},
};

/// The row of the table, or null for a number that is not known.
[[nodiscard]] constexpr const gguf_tensor_type* find_gguf_tensor_type(quant::type_id type) noexcept {
    for (const auto& entry : gguf_tensor_types)
        if (entry.number == static_cast<std::uint32_t>(type)) return &entry;
    return nullptr;
}

/// Numbers that the format once had and took back. Their blocks are not known here.
inline constexpr std::array gguf_removed_types = {
    gguf_tensor_type{4, 0, 0, "q4_2"},         gguf_tensor_type{5, 0, 0, "q4_3"},
    gguf_tensor_type{31, 0, 0, "q4_0_4_4"},    gguf_tensor_type{32, 0, 0, "q4_0_4_8"},
    gguf_tensor_type{33, 0, 0, "q4_0_8_8"},    gguf_tensor_type{36, 0, 0, "iq4_nl_4_4"},
    gguf_tensor_type{37, 0, 0, "iq4_nl_4_8"}, gguf_tensor_type{38, 0, 0, "iq4_nl_8_8"},
};

/// A type in words, for messages: "q3_k", "q4_2 (removed from the format)", or "999" where no name is known.
[[nodiscard]] FRUGAL_FLAGGED inline std::string describe_gguf_type(quant::type_id type) {
    if (const auto* known = find_gguf_tensor_type(type)) return std::string(known->name);
    for (const auto& entry : gguf_removed_types)
        if (entry.number == static_cast<std::uint32_t>(type)) return concat(entry.name, " (removed from the format)");
    return concat(static_cast<std::uint32_t>(type));
}

}  // namespace io

FRUGAL_NAMESPACE_END

#pragma once
/// Blocks unpacked to small integers: the common ground of decoding and of integer dot products.
///
/// A format that derives from `from_codes<Format, Codes>` writes only `unpack(block) -> Codes`; its `decode`, `activation`,
/// `dot_integers` and `dot` follow. `unpack` is a step of its own so that a kernel unpacks a block once for many tokens.
///
/// Dot products are exact up to the last rounding: integer sums in int32 (no 16-bit step that could saturate), each scale
/// product rounded once to float, and then double arithmetic in which every product is exact. Fused multiply-add or not, and
/// however the integer sums are cut into registers, the bits are the same; so they are on every instruction set.
#include <cstddef>
#include <cstdint>

#include "frugal/core/config.hpp"
#include "frugal/quant/activation.hpp"
#include "frugal/quant/vectors.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// The integer part of a dot product: sum of code * activation code, and sum of offset * activation code.
struct dot_terms {
    std::int32_t products = 0, offsets = 0;
};

namespace detail {

/// Both factors are floats, one of them an integer of at most 27 bits: exact.
[[nodiscard]] FRUGAL_ALWAYS_INLINE double exact_product(float scale, std::int32_t sum) noexcept {
    return static_cast<double>(scale) * static_cast<double>(sum);
}

}  // namespace detail

/// w[i] = scale * codes[i]. With `Code` = int16_t the codes already carry the integer scale of their group.
template <std::size_t Size, class Code>
struct scaled_codes {
    static constexpr std::size_t size = Size;
    using activation = q8_activation<Size>;
    float scale;
    Code codes[Size];

    FRUGAL_ALWAYS_INLINE void decode(float* out) const noexcept { detail::decode_codes<Size>(codes, out, scale); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE dot_terms dot_integers(const typename activation::block& x) const noexcept {
        return {detail::sum_of_products(codes, x.codes), 0};
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE double dot(const typename activation::block& x) const noexcept {
        return detail::exact_product(scale * x.scale, dot_integers(x).products);
    }
};

/// w[i] = scale * group_scales[i / Group] * levels[i]: what is packed in formats whose group scales may be negative.
template <std::size_t Size, std::size_t Group>
struct grouped_levels {
    float scale;
    std::int8_t group_scales[Size / Group];
    std::int8_t levels[Size];

    /// Multiplies in floats, so that a zero has the sign that the reference gives it.
    FRUGAL_ALWAYS_INLINE void decode(float* out) const noexcept {
        for (std::size_t g = 0; g < Size / Group; ++g)
            detail::decode_codes<Group>(levels + g * Group, out + g * Group, scale * static_cast<float>(group_scales[g]));
    }
    /// Group scales multiplied in: the magnitudes are at most 2^14.
    [[nodiscard]] FRUGAL_ALWAYS_INLINE scaled_codes<Size, std::int16_t> multiplied() const noexcept {
        scaled_codes<Size, std::int16_t> out;
        out.scale = scale;
        for (std::size_t g = 0; g < Size / Group; ++g)
            for (std::size_t i = 0; i < Group; ++i)
                out.codes[g * Group + i] = static_cast<std::int16_t>(group_scales[g] * levels[g * Group + i]);
        return out;
    }
};

/// w[i] = scale * codes[i] + offset_scale * offsets[i / Group].
template <std::size_t Size, std::size_t Group, class Code>
struct offset_codes {
    static constexpr std::size_t size = Size;
    using activation = q8_activation<Size>;
    float scale, offset_scale;
    std::int8_t offsets[Size / Group];
    Code codes[Size];

    FRUGAL_ALWAYS_INLINE void decode(float* out) const noexcept {
        for (std::size_t g = 0; g < Size / Group; ++g)
            detail::decode_codes<Group>(codes + g * Group, out + g * Group, scale, offset_scale * static_cast<float>(offsets[g]));
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE dot_terms dot_integers(const typename activation::block& x) const noexcept {
        dot_terms out{detail::sum_of_products(codes, x.codes), 0};
        constexpr std::size_t parts = Group / activation::sum_size;
        for (std::size_t g = 0; g < Size / Group; ++g)
            for (std::size_t i = 0; i < parts; ++i) out.offsets += static_cast<std::int32_t>(offsets[g]) * x.sums[g * parts + i];
        return out;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE double dot(const typename activation::block& x) const noexcept {
        const dot_terms terms = dot_integers(x);
        return detail::exact_product(scale * x.scale, terms.products) +
               detail::exact_product(offset_scale * x.scale, terms.offsets);
    }
};

/// What a format that unpacks to `Codes` gets for free.
template <class Format, class Codes>
struct from_codes {
    using codes_type = Codes;
    using activation = typename Codes::activation;
    static constexpr std::size_t block_size = Codes::size;

    FRUGAL_ALWAYS_INLINE static void decode(const std::byte* block, float* out) noexcept { Format::unpack(block).decode(out); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static dot_terms dot_integers(const std::byte* block,
                                                                     const typename activation::block& x) noexcept {
        return Format::unpack(block).dot_integers(x);
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE static double dot(const std::byte* block, const typename activation::block& x) noexcept {
        return Format::unpack(block).dot(x);
    }
};

}  // namespace quant

FRUGAL_NAMESPACE_END

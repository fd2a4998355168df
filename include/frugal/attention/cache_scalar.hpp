#pragma once
/// How features are stored in caches: which types there are, what they are called, and where their rows are kept.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "frugal/attention/token_store.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/quant/formats/q8_0.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

using ops::key_value_scalar;

/// The name of a type in messages.
template <class Scalar>
inline constexpr std::string_view scalar_name = std::is_same_v<Scalar, float>         ? "f32"
                                                : std::is_same_v<Scalar, half>        ? "f16"
                                                : std::is_same_v<Scalar, bfloat16>    ? "bf16"
                                                : std::is_same_v<Scalar, quant::q8_0> ? "q8_0"
                                                                                      : "i8";
/// Its letters, which saved states carry.
template <class Scalar>
[[nodiscard]] FRUGAL_FLAGGED constexpr std::uint32_t scalar_code() noexcept {
    std::uint32_t code = 0;
    for (const char letter : scalar_name<Scalar>) code = code << 8 | static_cast<std::uint8_t>(letter);
    return code;
}

/// Rows of features in the blocks of a quantised format; what token_store is to scalars, and as cheap to copy.
template <class Format>
class FRUGAL_FLAGGED quantised_token_store {
    using stored = ops::stored_features<Format>;

public:
    static constexpr std::size_t chunk_shift = token_store<std::int8_t>::chunk_shift;

    /// `width`: features of a row, whole blocks of them.
    explicit quantised_token_store(std::size_t width = 0) noexcept : width_(width), blocks_(stored::elements(width)) {}

    [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }
    [[nodiscard]] std::size_t width() const noexcept { return width_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return blocks_.bytes(); }
    [[nodiscard]] const std::int8_t* const* chunks() const noexcept { return blocks_.chunks(); }
    /// The blocks of a row.
    [[nodiscard]] const std::int8_t* row(std::size_t index) const noexcept { return blocks_.row(index); }

    /// Errors: out_of_memory (nothing changed that shows).
    [[nodiscard]] status reserve(std::size_t count) { return blocks_.reserve(count); }
    /// Fills a reserved row from floats, rounded as the format's encoder does; see ops::clamp_for_cache for what it cannot hold.
    void write(std::size_t index, const float* values) noexcept {
        auto* const to = reinterpret_cast<std::byte*>(blocks_.reserved_row(index));
        for (std::size_t block = 0; block < width_ / Format::block_size; ++block) {
            float in[Format::block_size];
            for (std::size_t i = 0; i < Format::block_size; ++i)
                in[i] = ops::clamp_for_cache<Format>(values[block * Format::block_size + i]);
            Format::encode(in, to + block * Format::block_bytes);
        }
    }
    void commit(std::size_t count) noexcept { blocks_.commit(count); }
    void truncate(std::size_t size) noexcept { blocks_.truncate(size); }
    void save(byte_writer& out) const { blocks_.save(out); }
    [[nodiscard]] static result<quantised_token_store> load(byte_reader& in, std::size_t width, std::size_t size) {
        quantised_token_store out(width);
        FRUGAL_TRY_ASSIGN(out.blocks_, token_store<std::int8_t>::load(in, stored::elements(width), size));
        return out;
    }

private:
    std::size_t width_;
    token_store<std::int8_t> blocks_;
};

namespace detail {
template <class Scalar>
struct FRUGAL_FLAGGED key_value_store {
    using type = token_store<Scalar>;
};
template <>
struct key_value_store<quant::q8_0> {
    using type = quantised_token_store<quant::q8_0>;
};
}  // namespace detail

/// The store of keys or values of this type.
template <key_value_scalar Scalar>
using key_value_store = typename detail::key_value_store<Scalar>::type;

}  // namespace attention

FRUGAL_NAMESPACE_END

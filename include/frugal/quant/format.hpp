#pragma once
/// The quantization format policy: what a format must say about itself.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// Run-time number of a format. GGUF types keep their GGUF number; numbers from 0x10000 up are free for formats of your own.
enum class type_id : std::uint32_t {};

/// A format: rows are cut into blocks of `block_size` weights stored in `block_bytes` bytes.
/// `decode(block, out)` writes `block_size` floats. Blocks may lie at any address.
template <class F>
concept format = requires(const std::byte* block, float* out) {
    { F::name } -> std::convertible_to<std::string_view>;
    { F::type } -> std::convertible_to<type_id>;
    { F::block_size } -> std::convertible_to<std::size_t>;
    { F::block_bytes } -> std::convertible_to<std::size_t>;
    { F::decode(block, out) }
    noexcept->std::same_as<void>;
};

/// A format with a reference encoder: `encode(in, block)` reads `block_size` floats.
template <class F>
concept encodable_format = format<F> && requires(const float* in, std::byte* block) {
    { F::encode(in, block) }
    noexcept->std::same_as<void>;
};

/// A format whose dot product with 8-bit activations is done in integers: `activation` is the activation format, whose blocks
/// hold `block_size` values; `unpack(block)` gives the block as small integers, once for many products; `dot` of a block with
/// one block of activations, packed or unpacked, is a double that is the same on every machine (quant/codes.hpp).
template <class F>
concept integer_dot_format = format<F> && F::activation::block_size ==
                             F::block_size&& requires(const std::byte* block, const typename F::activation::block& x) {
    { F::unpack(block) }
    noexcept;
    { F::unpack(block).dot(x) }
    noexcept->std::same_as<double>;
    { F::dot(block, x) }
    noexcept->std::same_as<double>;
};

/// A format that can tell whether the scales of a block (or the value itself) are neither NaN nor infinite.
template <class F>
concept checkable_format = format<F> && requires(const std::byte* block) {
    { F::finite(block) }
    noexcept->std::same_as<bool>;
};

/// Stands where a format has no 8-bit activations.
struct no_activation {
    struct block;  // never complete: there is none
};

namespace detail {
template <class F>
struct activation_of {
    using type = no_activation;
};
template <integer_dot_format F>
struct activation_of<F> {
    using type = typename F::activation;
};
}  // namespace detail

/// The activation format of an integer_dot_format; no_activation for other formats.
template <format F>
using activation_of = typename detail::activation_of<F>::type;

}  // namespace quant

FRUGAL_NAMESPACE_END

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
    { F::decode(block, out) } noexcept -> std::same_as<void>;
};

/// A format with a reference encoder: `encode(in, block)` reads `block_size` floats.
template <class F>
concept encodable_format = format<F> && requires(const float* in, std::byte* block) {
    { F::encode(in, block) } noexcept -> std::same_as<void>;
};

/// A format whose dot product with 8-bit activations is done in integers:
/// `activation` is the activation format, `dot(weights, activations)` covers `dot_size` = activation::block_size weights.
template <class F>
concept integer_dot_format = format<F> && requires(const std::byte* weights, const typename F::activation::block& x) {
    { F::dot(weights, x) } noexcept -> std::same_as<float>;
};

}  // namespace quant

FRUGAL_NAMESPACE_END

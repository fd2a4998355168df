#pragma once
/// Policies of the gated delta rule: which key head feeds which value head, how a state lies in memory, how a prefill scans.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// Which query/key head a value head reads, when there are more value heads than key heads. A mistaken pairing gives fluent
/// nonsense, so it is a type, chosen where the file format is known.
namespace head_pairing {
/// Value heads of one key head lie together: Hugging Face checkpoints (safetensors).
struct grouped {
    static constexpr std::string_view name = "grouped";
    [[nodiscard]] FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static constexpr std::size_t key_head(
        std::size_t value_head, std::size_t key_heads, std::size_t value_heads) noexcept {
        return value_head / (value_heads / key_heads);
    }
};
/// Value heads run through the key heads again and again: GGUF files.
struct tiled {
    static constexpr std::string_view name = "tiled";
    [[nodiscard]] FRUGAL_ALWAYS_INLINE FRUGAL_HOST_DEVICE static constexpr std::size_t key_head(
        std::size_t value_head, std::size_t key_heads, std::size_t /*value_heads*/) noexcept {
        return value_head % key_heads;
    }
};
}  // namespace head_pairing

/// A pairing: `name` and `key_head(value_head, key_heads, value_heads)`.
template <class P>
concept head_pairing_policy = requires(std::size_t n) {
    { P::name } -> std::convertible_to<std::string_view>;
    { P::key_head(n, n, n) } noexcept -> std::same_as<std::size_t>;
};
static_assert(head_pairing_policy<head_pairing::grouped> && head_pairing_policy<head_pairing::tiled>);

/// How the recurrent state of a head lies in memory. The arithmetic is the same, bit for bit.
namespace state_layout {
/// [value heads][key dim][value dim]
struct key_major {
    static constexpr std::string_view name = "key_major";
    static constexpr std::uint32_t code = 1;
};
/// [value heads][value dim][key dim]
struct value_major {
    static constexpr std::string_view name = "value_major";
    static constexpr std::uint32_t code = 2;
};
}  // namespace state_layout

/// A state layout: `key_major` or `value_major`; `code` marks saved states.
template <class L>
concept state_layout_policy = std::same_as<L, state_layout::key_major> || std::same_as<L, state_layout::value_major>;

/// How several tokens are worked through.
namespace scan {
/// Token by token: the same bits however the tokens are split into calls.
struct recurrent {
    static constexpr std::string_view name = "recurrent";
};
/// `Chunk` tokens at a time, as products of small matrices: 1.5 to 2.3 times as fast as `recurrent` in long prefills. Rounds
/// otherwise, within the same error (5e-6 of the greatest output and state in f32, against the rule in double), and chunks
/// begin where a call begins: results of different splits agree within rounding only.
template <std::size_t Chunk = 32>
struct chunked {
    static_assert(Chunk > 0, "frugal: scan::chunked needs a chunk of at least one token; write scan::chunked<64>");
    static constexpr std::string_view name = "chunked";
    static constexpr std::size_t chunk = Chunk;
};
}  // namespace scan

namespace detail {
template <class S>
inline constexpr bool is_scan = std::same_as<S, scan::recurrent>;
template <std::size_t Chunk>
inline constexpr bool is_scan<scan::chunked<Chunk>> = true;
}  // namespace detail

/// `scan::recurrent` or `scan::chunked<N>`.
template <class S>
concept scan_policy = detail::is_scan<S>;
static_assert(scan_policy<scan::recurrent> && scan_policy<scan::chunked<64>>);

/// Sizes of a gated delta rule.
struct delta_rule_dims {
    std::size_t key_heads = 0, value_heads = 0;  ///< value_heads is a multiple of key_heads
    std::size_t key_dim = 0, value_dim = 0;      ///< features of a query/key head and of a value head

    [[nodiscard]] FRUGAL_ALWAYS_INLINE constexpr std::size_t state_size() const noexcept {
        return value_heads * key_dim * value_dim;
    }
    FRUGAL_ALWAYS_INLINE friend bool operator==(const delta_rule_dims&, const delta_rule_dims&) = default;
};

/// Copies a state from one layout into another. Both spans hold dims.state_size() floats and do not overlap.
/// Errors: shape_mismatch.
template <state_layout_policy From, state_layout_policy To>
[[nodiscard]] status convert_state(const delta_rule_dims& dims, std::span<const float> from, std::span<float> to) {
    if (from.size() != dims.state_size() || to.size() != dims.state_size())
        return fail(errc::shape_mismatch, "conversion of a state of ", from.size(), " floats into ", to.size(), ", not ",
                    dims.state_size());
    const std::size_t rows = std::same_as<From, state_layout::key_major> ? dims.key_dim : dims.value_dim;
    const std::size_t cols = std::same_as<From, state_layout::key_major> ? dims.value_dim : dims.key_dim;
    for (std::size_t h = 0; h < dims.value_heads; ++h)
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t c = 0; c < cols; ++c) {
                const std::size_t at = std::same_as<From, To> ? r * cols + c : c * rows + r;
                to[h * rows * cols + at] = from[(h * rows + r) * cols + c];
            }
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END

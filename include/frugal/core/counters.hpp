#pragma once
/// Counting is a policy: `counters_off` compiles to nothing, `counters_on` counts from any thread.
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

enum class counter : std::uint8_t {
    weight_bytes_read,       ///< bytes of weight blocks that products and look-ups read
    dequantize_calls,        ///< host tensors dequantised for a product
    matmul_calls,            ///< products of a weight matrix with a batch of activations
    activation_quantize_calls,  ///< activation matrices quantised for integer dot products
    layout_builds,           ///< QSA cache-layout input sets built
    tokens,                  ///< tokens that went through a forward pass
    count_,
};

inline constexpr std::size_t counter_count = static_cast<std::size_t>(counter::count_);

[[nodiscard]] constexpr std::string_view to_string(counter which) noexcept {
    constexpr std::array<std::string_view, counter_count> names = {
        "weight_bytes_read", "dequantize_calls", "matmul_calls", "activation_quantize_calls", "layout_builds", "tokens"};
    return names[static_cast<std::size_t>(which)];
}

/// A counting policy: `add(which, n)` and `read(which)`.
template <class C>
concept counter_policy = requires(C& c, const C& k, counter which, std::uint64_t n) {
    c.add(which, n);
    { k.read(which) } -> std::same_as<std::uint64_t>;
};

struct counters_off {
    static constexpr bool enabled = false;
    constexpr void add(counter, std::uint64_t) noexcept {}
    [[nodiscard]] constexpr std::uint64_t read(counter) const noexcept { return 0; }
};

class counters_on {
public:
    static constexpr bool enabled = true;
    void add(counter which, std::uint64_t n) noexcept {
        values_[static_cast<std::size_t>(which)].fetch_add(n, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t read(counter which) const noexcept {
        return values_[static_cast<std::size_t>(which)].load(std::memory_order_relaxed);
    }
    void reset() noexcept {
        for (auto& value : values_) value.store(0, std::memory_order_relaxed);
    }

private:
    std::array<std::atomic<std::uint64_t>, counter_count> values_{};
};

static_assert(counter_policy<counters_off> && counter_policy<counters_on>);

FRUGAL_NAMESPACE_END

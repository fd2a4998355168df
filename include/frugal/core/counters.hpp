#pragma once
/// Counting is a policy: `counters_off` compiles to nothing, `counters_on` counts from any thread.
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

enum class counter : std::uint8_t {
    weight_bytes_read,       ///< bytes of weight blocks that products and look-ups read
    dequantize_calls,        ///< host tensors dequantised for a product
    matmul_calls,            ///< products of a weight matrix with a batch of activations
    activation_quantize_calls,  ///< activation matrices quantised or rounded for products
    layout_builds,           ///< QSA cache-layout input sets built
    layout_updates,          ///< QSA layouts kept up to date by the changes alone
    layout_hits,             ///< QSA layouts found unchanged and used as they were
    dequantized_bytes,       ///< bytes written while host tensors were dequantised to be packed or read on the host
    loads_skipped,           ///< host tensors left as they were because nobody would read them
    images_packed,           ///< weight images packed for a device
    image_bytes_uploaded,    ///< bytes of packed images that went to a device
    image_products,          ///< products that a device computed from a resident image
    load_nanoseconds,        ///< time from the beginning of a layer's step until its host weights were there or skipped
    device_nanoseconds,      ///< time in products that a device computed from a resident image
    host_fallbacks,          ///< products that the host took over because the device could not hold or compute them
    tokens,                  ///< tokens that went through a forward pass
    count_,
};

inline constexpr std::size_t counter_count = static_cast<std::size_t>(counter::count_);

[[nodiscard]] FRUGAL_FLAGGED constexpr std::string_view to_string(counter which) noexcept {
    constexpr std::array<std::string_view, counter_count> names = {
        "weight_bytes_read", "dequantize_calls", "matmul_calls", "activation_quantize_calls", "layout_builds",
        "layout_updates", "layout_hits", "dequantized_bytes", "loads_skipped", "images_packed", "image_bytes_uploaded",
        "image_products", "load_nanoseconds", "device_nanoseconds", "host_fallbacks", "tokens"};
    return names[static_cast<std::size_t>(which)];
}

/// A counting policy: `add(which, n)`, `read(which)`, and whether it counts at all.
template <class C>
concept counter_policy = requires(C& c, const C& k, counter which, std::uint64_t n) {
    c.add(which, n);
    { k.read(which) } -> std::same_as<std::uint64_t>;
    typename std::bool_constant<C::enabled>;
};

struct FRUGAL_FLAGGED counters_off {
    static constexpr bool enabled = false;
    constexpr void add(counter, std::uint64_t) noexcept {}
    [[nodiscard]] constexpr std::uint64_t read(counter) const noexcept { return 0; }
};

class FRUGAL_FLAGGED counters_on {
public:
    static constexpr bool enabled = true;
    counters_on() noexcept = default;
    counters_on(const counters_on& other) noexcept { *this = other; }
    counters_on& operator=(const counters_on& other) noexcept {
        for (std::size_t i = 0; i < counter_count; ++i)
            values_[i].store(other.values_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
        return *this;
    }
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

/// Adds the nanoseconds of its lifetime to a counter; nothing, and no clock is read, where counting is off.
template <counter_policy Counters>
class FRUGAL_FLAGGED count_time {
public:
    count_time(Counters& counters, counter which) noexcept : counters_(counters), which_(which) {
        if constexpr (Counters::enabled) begin_ = std::chrono::steady_clock::now();
    }
    count_time(const count_time&) = delete;
    count_time& operator=(const count_time&) = delete;
    ~count_time() {
        if constexpr (Counters::enabled) {
            const auto passed = std::chrono::steady_clock::now() - begin_;
            counters_.add(which_, static_cast<std::uint64_t>(std::chrono::nanoseconds(passed).count()));
        }
    }

private:
    Counters& counters_;
    counter which_;
    std::chrono::steady_clock::time_point begin_;
};

FRUGAL_NAMESPACE_END

#pragma once
/// The shared-inputs policy: how the inputs of QSA layers that depend on the cache layout alone are made: once for each layer
/// or for each ratio, and anew for each batch or only where something changed.
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// How an input set comes to be what a batch needs.
enum class upkeep : std::uint8_t {
    rebuild,    ///< filled in full from all tokens, in every batch
    memo,       ///< the same, but left as it is where everything that it is made from equals that of the latest fill
    increment,  ///< changed where the tokens changed
};

/// What every shared-inputs policy says: its name, how a set is kept, and which set a layer reads. `ratios` are the compress
/// ratios of a model's QSA layers in order, `layer` an index into them; sets are numbered from 0 without a gap.
template <class P>
concept shared_input_policy = requires(std::span<const std::size_t> ratios, std::size_t layer) {
    { P::name } -> std::convertible_to<std::string_view>;
    requires std::same_as<std::remove_cvref_t<decltype(P::kept_by)>, upkeep>;
    typename std::integral_constant<upkeep, P::kept_by>;
    { P::set_of(ratios, layer) }
    noexcept->std::same_as<std::size_t>;
};

/// Every layer has a set of its own, filled for it in every batch: the wasteful arm of a comparison.
struct FRUGAL_FLAGGED per_layer {
    static constexpr std::string_view name = "per_layer";
    static constexpr upkeep kept_by = upkeep::rebuild;
    [[nodiscard]] static constexpr std::size_t set_of(std::span<const std::size_t>, std::size_t layer) noexcept { return layer; }
};

/// One input set for each distinct ratio, filled once a batch and read by all layers of that ratio.
struct FRUGAL_FLAGGED shared {
    static constexpr std::string_view name = "shared";
    static constexpr upkeep kept_by = upkeep::rebuild;
    [[nodiscard]] static constexpr std::size_t set_of(std::span<const std::size_t> ratios, std::size_t layer) noexcept {
        std::size_t distinct = 0;
        for (std::size_t i = 0; i < layer; ++i) {
            if (ratios[i] == ratios[layer]) return set_of(ratios, i);
            bool fresh = true;
            for (std::size_t j = 0; j < i; ++j) fresh = fresh && ratios[j] != ratios[i];
            distinct += fresh ? 1 : 0;
        }
        return distinct;
    }
};

/// As `shared`, and a fill is left out where its result is there already: where the same batch is evaluated again. A batch
/// that adds tokens to what was evaluated before is another one, so plain decoding fills once a batch.
struct FRUGAL_FLAGGED memoised {
    static constexpr std::string_view name = "memoised";
    static constexpr upkeep kept_by = upkeep::memo;
    [[nodiscard]] static constexpr std::size_t set_of(std::span<const std::size_t> ratios, std::size_t layer) noexcept {
        return shared::set_of(ratios, layer);
    }
};

/// As `shared`, and what a set holds is never made twice: a batch costs its own tokens, whatever came before them.
struct FRUGAL_FLAGGED incremental {
    static constexpr std::string_view name = "incremental";
    static constexpr upkeep kept_by = upkeep::increment;
    [[nodiscard]] static constexpr std::size_t set_of(std::span<const std::size_t> ratios, std::size_t layer) noexcept {
        return shared::set_of(ratios, layer);
    }
};

/// What is used where no policy is named.
using default_shared_inputs = incremental;

static_assert(shared_input_policy<default_shared_inputs> && shared_input_policy<memoised> && shared_input_policy<shared> &&
                  shared_input_policy<per_layer>,
              "frugal: the default way to share inputs must model reuse::shared_input_policy");

/// How many input sets the layers with these ratios need, so that a model can assert it at compile time.
template <shared_input_policy Policy>
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t count_sets(std::span<const std::size_t> ratios) noexcept {
    std::size_t sets = 0;
    for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
        const std::size_t set = Policy::set_of(ratios, layer);
        sets = set + 1 > sets ? set + 1 : sets;
    }
    return sets;
}

/// Which input set each layer reads, so that a model can assert who shares with whom at compile time.
template <shared_input_policy Policy, std::size_t Layers>
[[nodiscard]] FRUGAL_FLAGGED constexpr std::array<std::size_t, Layers> map_layers(
    const std::array<std::size_t, Layers>& ratios) noexcept {
    std::array<std::size_t, Layers> sets{};
    for (std::size_t layer = 0; layer < Layers; ++layer) sets[layer] = Policy::set_of(ratios, layer);
    return sets;
}

}  // namespace reuse

FRUGAL_NAMESPACE_END

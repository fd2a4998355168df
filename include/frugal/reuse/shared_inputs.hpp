#pragma once
/// The shared-inputs policy: how often the inputs of QSA layers that depend on the cache layout alone are built in a batch.
#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What every shared-inputs policy says: its name, and which input set a layer reads. `ratios` are the compress ratios of
/// a model's QSA layers in order, `layer` an index into them; sets are numbered from 0 without a gap.
template <class P>
concept shared_input_policy = requires(std::span<const std::size_t> ratios, std::size_t layer) {
    { P::name } -> std::convertible_to<std::string_view>;
    { P::set_of(ratios, layer) }
    noexcept->std::same_as<std::size_t>;
};

/// One input set for each distinct ratio, built once a batch and read by all layers of that ratio.
struct shared {
    static constexpr std::string_view name = "shared";
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

/// Every layer has a set of its own, built for it in every batch: the wasteful arm of a comparison.
struct per_layer {
    static constexpr std::string_view name = "per_layer";
    [[nodiscard]] static constexpr std::size_t set_of(std::span<const std::size_t>, std::size_t layer) noexcept { return layer; }
};

/// What is used where no policy is named.
using default_shared_inputs = shared;

static_assert(shared_input_policy<default_shared_inputs> && shared_input_policy<per_layer>,
              "frugal: the default way to share inputs must model reuse::shared_input_policy");

/// How many input sets the layers with these ratios need, so that a model can assert it at compile time.
template <shared_input_policy Policy>
[[nodiscard]] constexpr std::size_t count_sets(std::span<const std::size_t> ratios) noexcept {
    std::size_t sets = 0;
    for (std::size_t layer = 0; layer < ratios.size(); ++layer) {
        const std::size_t set = Policy::set_of(ratios, layer);
        sets = set + 1 > sets ? set + 1 : sets;
    }
    return sets;
}

}  // namespace reuse

FRUGAL_NAMESPACE_END

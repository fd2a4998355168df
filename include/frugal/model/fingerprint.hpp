#pragma once
/// Tells models apart whose saved sequences must not be mixed up.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frugal/model/config.hpp"
#include "frugal/model/spec.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// FNV-1a over architecture, weight convention, sizes and the rotary scaling.
template <specification Spec, class Convention>
[[nodiscard]] std::uint64_t fingerprint(const config& sizes) noexcept {
    std::uint64_t hash = 0xCBF29CE484222325u;
    const auto take = [&](std::uint64_t value) {
        for (int byte = 0; byte < 8; ++byte, value >>= 8) hash = (hash ^ (value & 0xFFu)) * 0x100000001B3u;
    };
    for (const std::string_view name : {Spec::name, Convention::name})
        for (const char c : name) take(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    for (const std::size_t size :
         {sizes.vocabulary, sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.rotary_dim, sizes.key_heads,
          sizes.value_heads, sizes.key_dim, sizes.value_dim, sizes.conv_kernel, sizes.streams, sizes.index_dim})
        take(size);
    for (const layer_kind kind : sizes.layers) take(static_cast<std::uint64_t>(kind));
    // Kept keys are rotated. Only where something is scaled, so that sequences saved without it stay loadable.
    if (const ops::rope_scaling& s = sizes.rope_scaling; s != ops::rope_scaling{}) {
        take(static_cast<std::uint64_t>(s.kind));
        for (const double number : {s.factor, s.original_context, s.beta_fast, s.beta_slow, s.magnitude})
            take(std::bit_cast<std::uint64_t>(number));
        take(s.whole_ends ? 1 : 0);
    }
    return hash;
}

}  // namespace model

FRUGAL_NAMESPACE_END

#pragma once
/// Tells models apart whose saved sequences must not be mixed up.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frugal/model/config.hpp"
#include "frugal/model/spec.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// FNV-1a over architecture, weight convention and sizes.
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
    return hash;
}

}  // namespace model

FRUGAL_NAMESPACE_END

#pragma once
/// Who reads which host weights of a layer, declared once at compile time; what a step may skip is derived from it.
///
///     enum class image { qkv, o };
///     enum class buffer { q, k, v, o };
///     enum class mode { host_matmul };
///     using pack_qkv = reuse::packs<image::qkv, buffer::q, buffer::k, buffer::v>;
///     using pack_o = reuse::packs<image::o, buffer::o>;
///     using on_host = reuse::reads_on_host<mode::host_matmul, buffer::q, buffer::k, buffer::v, buffer::o>;
///     using table = reuse::reader_table<reuse::buffers<buffer::q, buffer::k, buffer::v, buffer::o>, pack_qkv, pack_o, on_host>;
///
/// A packing reader runs if and only if its image is absent, and its result is that image; a host reader runs if and only if
/// its mode is on. So a buffer may be skipped exactly if every image packed from it is there and no mode that reads it is on.
/// The data itself is reached through host_buffers::run alone, which asks the same declaration.
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "frugal/core/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// A set of images or modes: bit n stands for the identifier of value n.
using bit_set = std::uint64_t;

/// A compile-time value as a type: names buffers where a type is needed.
template <auto Value>
struct FRUGAL_FLAGGED constant {
    static constexpr auto value = Value;
};

template <auto A, auto B>
inline constexpr bool same_id = std::is_same_v<constant<A>, constant<B>>;

/// Identifier of an image whose weights are chosen by the tokens of a step (a routed expert). It can not be declared
/// resident: which one a step needs is not known before it routes. Keep such images in a reuse::image_cache.
struct FRUGAL_FLAGGED depends_on_token {
    unsigned index = 0;
};

/// The bit of an image or mode. Identifiers are enumerators or integers from 0 to 63.
template <auto Id>
[[nodiscard]] constexpr bit_set bit_of() noexcept {
    using type = std::remove_cvref_t<decltype(Id)>;
    static_assert(!std::is_same_v<type, depends_on_token>,
                  "frugal: an image that depends on the token cannot be declared resident; keep it in a reuse::image_cache");
    if constexpr (std::is_enum_v<type> || std::is_integral_v<type>) {
        static_assert(static_cast<long long>(Id) >= 0 && static_cast<long long>(Id) < 64,
                      "frugal: images and modes are numbered from 0 to 63");
        return bit_set{1} << static_cast<unsigned>(Id);
    } else {
        static_assert(std::is_same_v<type, depends_on_token>,
                      "frugal: images and modes are enumerators or integers: packs<image::qkv, buffer::q>");
        return 0;
    }
}

/// A list of identifiers.
template <auto... Id>
struct FRUGAL_FLAGGED buffers {
    static constexpr std::size_t size = sizeof...(Id);
    template <auto X>
    static constexpr std::size_t count = (std::size_t{0} + ... + (same_id<X, Id> ? 1 : 0));
};

/// Reads the buffers to pack `Image`; runs if and only if the image is absent, and its result is the image.
template <auto Image, auto... Buffer>
struct FRUGAL_FLAGGED packs {
    static_assert(sizeof...(Buffer) > 0, "frugal: a packing reader reads at least one buffer: packs<image, buffer...>");
    static constexpr auto id = Image;
    static constexpr bit_set image = bit_of<Image>(), mode = 0;
    using reads = buffers<Buffer...>;
};

/// Reads the buffers on the host; runs if and only if `Mode` is on, whatever is resident: products on the host, a LoRA merge,
/// a dump.
template <auto Mode, auto... Buffer>
struct FRUGAL_FLAGGED reads_on_host {
    static_assert(sizeof...(Buffer) > 0, "frugal: a host reader reads at least one buffer: reads_on_host<mode, buffer...>");
    static constexpr bit_set image = 0, mode = bit_of<Mode>();
    using reads = buffers<Buffer...>;
};

namespace detail {

template <class T>
inline constexpr bool is_buffers = false;
template <auto... Id>
inline constexpr bool is_buffers<buffers<Id...>> = true;
template <class T>
inline constexpr bool is_reader = false;
template <auto Image, auto... Buffer>
inline constexpr bool is_reader<packs<Image, Buffer...>> = true;
template <auto Mode, auto... Buffer>
inline constexpr bool is_reader<reads_on_host<Mode, Buffer...>> = true;

template <class Declared, class Read>
inline constexpr bool all_declared = false;
template <class Declared, auto... Read>
inline constexpr bool all_declared<Declared, buffers<Read...>> = ((Declared::template count<Read> == 1) && ...);

template <class... Reader>
[[nodiscard]] constexpr bool one_packer_an_image() noexcept {
    [[maybe_unused]] bit_set seen = 0;
    bool ok = true;
    ((ok = ok && (Reader::image & seen) == 0, seen |= Reader::image), ...);
    return ok;
}

}  // namespace detail

/// The readers of one kind of layer. `Buffers`: reuse::buffers<…>, all that a step of the layer can load.
template <class Buffers, class... Reader>
struct FRUGAL_FLAGGED reader_table {
    static_assert(detail::is_buffers<Buffers> && (detail::is_reader<Reader> && ...),
                  "frugal: write reader_table<buffers<...>, packs<image, buffer...>..., reads_on_host<mode, buffer...>...>");
};

template <auto... Buffer, class... Reader>
    requires(detail::is_reader<Reader>&&...)
struct reader_table<buffers<Buffer...>, Reader...> {
    using declared = buffers<Buffer...>;
    static_assert(((declared::template count<Buffer> == 1) && ...), "frugal: a reader table declares a buffer twice");
    static_assert((detail::all_declared<declared, typename Reader::reads> && ...),
                  "frugal: a reader names a buffer that its table does not declare; add it to buffers<...>");
    static_assert(detail::one_packer_an_image<Reader...>(),
                  "frugal: two readers pack the same image; give every packed image of a layer a number of its own");

    static constexpr std::size_t size = sizeof...(Buffer);
    /// All images that the table's readers pack.
    static constexpr bit_set images = (bit_set{0} | ... | Reader::image);

    template <class R>
    static constexpr bool has_reader = ((std::is_same_v<R, Reader>) || ...);
    /// Place of a buffer, from 0.
    template <auto B>
    [[nodiscard]] static constexpr std::size_t index_of() noexcept {
        std::size_t at = 0, found = size;
        ((same_id<B, Buffer> ? void(found = at++) : void(++at)), ...);
        return found;
    }
    /// Images that are packed from a buffer, and modes whose readers read it.
    template <auto B>
    static constexpr bit_set images_of = (bit_set{0} | ... | (Reader::reads::template count<B> != 0 ? Reader::image : 0));
    template <auto B>
    static constexpr bit_set modes_of = (bit_set{0} | ... | (Reader::reads::template count<B> != 0 ? Reader::mode : 0));
    static_assert(((images_of<Buffer> != 0 || modes_of<Buffer> != 0) && ...),
                  "frugal: no reader reads one of the table's buffers; what nobody reads must not be loaded");

    /// Whether no reader of a step can read the buffer. `settled`: images that no reader of the step will pack, because they
    /// are resident or have been given up; `modes`: those that are on.
    template <auto B>
    [[nodiscard]] static constexpr bool skip(bit_set settled, bit_set modes) noexcept {
        return (images_of<B> & ~settled) == 0 && (modes_of<B> & modes) == 0;
    }
    /// Calls `f(constant<B>{})` for every buffer in order.
    template <class F>
    static constexpr void for_each_buffer([[maybe_unused]] F&& f) {
        (f(constant<Buffer>{}), ...);
    }
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

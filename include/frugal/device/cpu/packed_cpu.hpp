#pragma once
/// The CPU with weight images: weights repacked once into the layout that the kernels want.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/pack_panels.hpp"
#include "frugal/device/image.hpp"
#include "frugal/quant/compiled.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/panels.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// Packs with the kernels of an instruction set.
template <class Isa>
struct FRUGAL_FLAGGED kernel_packing {
    template <quant::format Format>
    static void pack(const quant::weight_view& w, std::size_t first, std::size_t last, std::byte* out) noexcept {
        FRUGAL_REQUIRE_KERNELS(Format);
        pack_panels<Isa, Format>(w, first, last, out);
    }
};

/// A cpu<Isa, Counters, Activations> whose images are panels (quant/panels.hpp), multiplied by ops::image_matmul: the same bits
/// as from the file's blocks. Once an image is there, the file's blocks are not read again.
/// Formats: those that it packs; a list of your own formats may stand here.
template <class Isa = frugal::isa::native, class Counters = counters_off, class Formats = quant::all,
          class Activations = device::default_activations>
class packed_cpu : public cpu<Isa, Counters, Activations> {
    static_assert(quant::format_list<Formats>,
                  "frugal: device::packed_cpu<Isa, Counters, Formats, Activations> takes the formats that it packs third; "
                  "write quant::all or quant::list<...>");

public:
    using image = quant::panel_weights;
    using source = quant::weight_view;
    using image_formats = Formats;
    static constexpr std::string_view name = "packed_cpu";
    static constexpr bool packs_small_products = true;

    using cpu<Isa, Counters, Activations>::cpu;

    /// On all threads of the executor. Errors: unsupported_format, shape_mismatch, invalid_argument, out_of_memory.
    [[nodiscard]] result<image> pack(std::span<const source> parts) {
        return image::pack<Formats, kernel_packing<Isa>>(
            parts, [this](std::size_t n, std::size_t grain, auto&& f) { this->run_ranges(n, grain, f); });
    }
    /// Images in host memory are never lost.
    [[nodiscard]] std::uint64_t generation() const noexcept { return 0; }
};

static_assert(image_target<packed_cpu<>>);

}  // namespace device

FRUGAL_NAMESPACE_END

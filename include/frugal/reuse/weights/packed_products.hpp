#pragma once
/// The products of a layer as images that are packed once and stay: for whoever never reads the file's weights again.
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/device/image.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// One image for each product of List, small ones too. Which matrices are read, and that none is afterwards, follows from the
/// list: this holds no view of them. Move-only.
template <class List, device::image_target Device>
class FRUGAL_FLAGGED packed_products {
public:
    using image_type = typename Device::image;

    /// Packs every product whose matrices are there; products of empty matrices stay without an image.
    /// Errors: those of Device::pack; nothing stays allocated.
    [[nodiscard]] static result<packed_products> pack(Device& dev, const typename List::weights& w,
                                                      const source_unneeded& unneeded = nullptr) {
        packed_products out;
        FRUGAL_TRY(out.pack_each(dev, w, unneeded, static_cast<const List*>(nullptr)));
        return out;
    }

    /// The image of one product. Precondition: its matrices were there.
    template <class Product>
    [[nodiscard]] const image_type& image() const noexcept {
        return *images_[List::template index_of<Product>()];
    }
    template <class Product>
    [[nodiscard]] bool has() const noexcept {
        return images_[List::template index_of<Product>()].has_value();
    }
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = 0;
        for (const auto& one : images_) sum += one ? one->bytes() : 0;
        return sum;
    }

private:
    template <class Weights, class... Product>
    [[nodiscard]] status pack_each(Device& dev, const Weights& w, const source_unneeded& unneeded,
                                   const product_list<Weights, Product...>*) {
        status done;
        const auto one = [&]<class P>(const P*) {
            if (!done) return;
            const auto parts = P::of(w);
            if (parts.front().empty()) return;
            auto made = dev.pack(parts);
            if (!made) {
                done = std::move(made).error();
                return;
            }
            images_[List::template index_of<P>()].emplace(std::move(*made));
            if (unneeded)
                for (const quant::weight_view& part : parts) unneeded({part.data, part.bytes()});
        };
        (one(static_cast<const Product*>(nullptr)), ...);
        return done;
    }

    std::array<std::optional<image_type>, List::size> images_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

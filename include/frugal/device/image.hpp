#pragma once
/// Devices that multiply with weight images: weights packed once into the device's own layout, which stay there.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// A device that holds weight images and multiplies with them; every other operator runs on its host CPU.
/// - `image`: owns the device memory of one packed matrix, move-only; `bytes()` says how much;
/// - `source`: a host matrix that an image is packed from;
/// - `pack(parts)`: stacks the parts by rows (equal columns), packs and uploads them. An error leaks nothing and leaves
///   the device usable. Errors: out_of_memory (the device is full), shape_mismatch, device_failed, device_lost;
/// - `generation()`: changes whenever every image of the device has been lost.
/// ops::image_matmul multiplies with an image.
template <class D>
concept image_target = cpu_target<D> && std::movable<typename D::image> &&
    requires(D& d, const D& k, const typename D::image& image, std::span<const typename D::source> parts) {
    { image.bytes() } -> std::convertible_to<std::size_t>;
    { d.pack(parts) } -> std::same_as<result<typename D::image>>;
    { k.generation() } -> std::same_as<std::uint64_t>;
};

/// Checks x and y of a product with an image of `parts` matrices of `cols` columns, part i of which has `rows_of(i)` rows.
/// Errors: shape_mismatch.
template <class Rows>
[[nodiscard]] status check_image_product(std::size_t parts, std::size_t cols, Rows&& rows_of, matrix_view<const float> x,
                                         std::span<const matrix_view<float>> y) {
    if (y.size() != parts) return fail(errc::shape_mismatch, "product of an image of ", parts, " matrices into ", y.size());
    for (std::size_t i = 0; i < parts; ++i)
        if (x.cols() != cols || y[i].cols() != rows_of(i) || y[i].rows() != x.rows())
            return fail(errc::shape_mismatch, "product of an image [", rows_of(i), ", ", cols, "] with x [", x.rows(), ", ",
                        x.cols(), "] into y [", y[i].rows(), ", ", y[i].cols(), "]");
    return {};
}

/// An image_target that computes products itself: `multiply(scratch, image, x, y)` writes y[i][t][r] = sum over c of
/// w_i[r][c] * x[t][c] for each part i of the image. x: [tokens, columns], y[i]: [tokens, rows of part i].
/// Errors: shape_mismatch, out_of_memory, device_failed, device_lost.
template <class D>
concept multiplying_target = image_target<D> && requires(D& d, workspace& scratch, const typename D::image& image,
                                                         matrix_view<const float> x, std::span<const matrix_view<float>> y) {
    { d.multiply(scratch, image, x, y) } -> std::same_as<status>;
};

/// Whether a device packs images of a layer's small products too (reuse::small_product): it does where reading an image costs
/// the host nothing, and says so by a member `packs_small_products`. On other devices the host computes those.
template <class D>
inline constexpr bool packs_small_products = false;
template <class D>
    requires requires { requires D::packs_small_products; }
inline constexpr bool packs_small_products<D> = true;

}  // namespace device

FRUGAL_NAMESPACE_END

#pragma once
/// The activations policy: whether an activation vector is made ready (quantised, or padded to whole groups) once for all
/// products that read it, or by each of them: q, k, v and gate; gate and up; every chosen expert and the shared one.
#include <concepts>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/image.hpp"
#include "frugal/ops/matmul/activations.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What every activations policy says: its name, and whether products of one input share what was made ready.
template <class P>
concept activation_sharing_policy = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    typename std::bool_constant<P::shares_activations>;
};

/// Activations are made ready once, for all products that read them.
struct FRUGAL_FLAGGED shared_activations {
    static constexpr std::string_view name = "shared_activations";
    static constexpr bool shares_activations = true;
};

/// Each product makes its activations ready for itself: the wasteful arm of a comparison.
struct FRUGAL_FLAGGED per_product {
    static constexpr std::string_view name = "per_product";
    static constexpr bool shares_activations = false;
};

/// What is used where no policy is named.
using default_activation_sharing = shared_activations;

static_assert(activation_sharing_policy<default_activation_sharing> && activation_sharing_policy<per_product>,
              "frugal: the default sharing of activations must model reuse::activation_sharing_policy");

/// What products read: activations, and the form in which the library's kernels take them where that has been made. Not owned.
struct FRUGAL_FLAGGED product_input {
    product_input(matrix_view<const float> activations) noexcept : x(activations) {}  // NOLINT: a view of the same
    product_input(matrix_view<float> activations) noexcept : x(activations) {}        // NOLINT: likewise

    [[nodiscard]] std::size_t rows() const noexcept { return ready ? ready->rows : x.rows(); }
    /// Rows first … first + count - 1.
    [[nodiscard]] product_input rows_range(std::size_t first, std::size_t count) const noexcept {
        product_input out = *this;
        if (x.data() != nullptr) out.x = x.rows_range(first, count);
        if (ready) out.ready = ready->rows_range(first, count);
        return out;
    }

    matrix_view<const float> x;  ///< [tokens, columns]; may be empty where `ready` is not
    std::optional<ops::prepared_activations> ready;
};

/// x for several products. Where `Sharing` shares and the library's kernels multiply, x is made ready now, in scratch of the
/// caller's scope, and must stay as it is while that lasts. Errors: out_of_memory.
template <activation_sharing_policy Sharing, device::cpu_target Device>
[[nodiscard]] result<product_input> share_input(Device& dev, workspace& scratch, matrix_view<const float> x) {
    product_input out(x);
    if constexpr (Sharing::shares_activations && !device::multiplying_target<Device>) {
        FRUGAL_TRY_ASSIGN(out.ready, ops::prepare_activations(dev, scratch, x));
    }
    return out;
}

/// What the library's kernels take: what was made ready before, else made now in scratch of the caller's scope.
/// Errors: out_of_memory.
template <device::cpu_target Device>
[[nodiscard]] result<ops::prepared_activations> make_ready(Device& dev, workspace& scratch, const product_input& input) {
    if (input.ready) return *input.ready;
    return ops::prepare_activations(dev, scratch, input.x);
}

/// Row i of the result is row rows[i] of `input`, in the form that `input` has. `values`: as ops::gather_activations.
/// Errors: out_of_memory. Precondition: each row is one of `input`.
template <device::cpu_target Device>
[[nodiscard]] result<product_input> gather_input(Device& dev, workspace& scratch, const product_input& input,
                                                 std::span<const std::size_t> rows, bool values) {
    if (input.ready) {
        product_input out(matrix_view<const float>{});
        FRUGAL_TRY_ASSIGN(out.ready, ops::gather_activations(dev, scratch, *input.ready, rows, values));
        return out;
    }
    FRUGAL_TRY_ASSIGN(const auto copy, scratch.matrix(rows.size(), input.x.cols()));
    dev.run_ranges(rows.size(), device::grain(input.x.cols()), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) std::memcpy(copy.row(i), input.x.row(rows[i]), input.x.cols() * sizeof(float));
    });
    return product_input(copy);
}

}  // namespace reuse

FRUGAL_NAMESPACE_END

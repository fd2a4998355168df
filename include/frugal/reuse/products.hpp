#pragma once
/// The products of a layer with its weights, named at compile time, so that who computes them is a policy: the CPU from the
/// file's blocks (direct_products), or a device from resident images (image_products).
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/reader_table.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Products of one input with one or more weight matrices: `product<&weights::q, &weights::k, &weights::v>`. The members are
/// quant::weight_view. On a device they are one image: the matrices stacked by rows.
template <auto... Member>
struct product {
    static_assert(sizeof...(Member) > 0, "frugal: a product has at least one weight matrix: product<&weights::q>");
    static constexpr std::size_t size = sizeof...(Member);
    using members = buffers<Member...>;

    template <class Weights>
    [[nodiscard]] static std::array<quant::weight_view, size> of(const Weights& w) noexcept {
        return {w.*Member...};
    }
};

namespace detail {

template <class Indices, class... Product>
struct product_table;

// Image i is packed from product i's matrices; mode i says that the host computes product i.
template <std::size_t... I, class... Product>
struct product_table<std::index_sequence<I...>, Product...> {
    template <auto Index, class Members>
    struct of;
    template <auto Index, auto... Member>
    struct of<Index, buffers<Member...>> {
        using packer = packs<Index, Member...>;
        using host_reader = reads_on_host<Index, Member...>;
    };
    template <class Members, class... Rest>
    struct joined {
        using type = Members;
    };
    template <auto... A, auto... B, class... Rest>
    struct joined<buffers<A...>, buffers<B...>, Rest...> : joined<buffers<A..., B...>, Rest...> {};

    using table =
        reader_table<typename joined<typename Product::members...>::type, typename of<I, typename Product::members>::packer...,
                     typename of<I, typename Product::members>::host_reader...>;
};

}  // namespace detail

/// All products of one kind of layer, as `Weights` holds their matrices. A matrix belongs to one product.
template <class Weights, class... Product>
struct product_list {
    static_assert(sizeof...(Product) > 0, "frugal: a product_list has at least one product");
    using weights = Weights;
    static constexpr std::size_t size = sizeof...(Product);
    using tables = detail::product_table<std::make_index_sequence<size>, Product...>;
    /// Who reads which matrix: derived, see reader_table.
    using table = typename tables::table;

    template <class P>
    static constexpr bool contains = ((std::is_same_v<P, Product>) || ...);
    /// Number of a product's image, and of the mode in which the host computes it.
    template <class P>
    [[nodiscard]] static constexpr std::size_t index_of() noexcept {
        std::size_t at = 0, found = size;
        ((std::is_same_v<P, Product> ? void(found = at++) : void(++at)), ...);
        return found;
    }
    template <class P>
    using packer = typename tables::template of<index_of<P>(), typename P::members>::packer;
    template <class P>
    using host_reader = typename tables::template of<index_of<P>(), typename P::members>::host_reader;
    /// All modes: the host computes every product.
    static constexpr bit_set all_on_host = table::images;
};

/// y[i][t][r] = sum over c of w[i][r][c] * x[t][c] on the CPU, as one parallel region. x: [tokens, columns]; y[i]: [tokens, rows
/// of w[i]]. Errors: those of ops::grouped_matmul.
template <quant::format_list Formats, device::cpu_target Device, std::size_t N>
[[nodiscard]] status multiply_each(Device& dev, workspace& scratch, const std::array<quant::weight_view, N>& w,
                                   matrix_view<const float> x, const std::array<matrix_view<float>, N>& y) {
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(const ops::prepared_activations ready, ops::prepare_activations(dev, scratch, x));
    std::array<ops::matmul_product, N> each;
    for (std::size_t i = 0; i < N; ++i) each[i] = {w[i], ready, y[i]};
    return ops::grouped_matmul<Formats>(dev, scratch, each);
}

/// Computes products on the CPU, from the blocks of the file.
template <quant::format_list Formats, device::cpu_target Device, class Weights>
class direct_products {
public:
    direct_products(Device& dev, workspace& scratch, const Weights& weights) noexcept
        : dev_(dev), scratch_(scratch), weights_(weights) {}

    /// y[i] = x times the product's matrix i; see multiply_each.
    template <class Product>
    [[nodiscard]] status multiply(matrix_view<const float> x, const std::array<matrix_view<float>, Product::size>& y) {
        return multiply_each<Formats>(dev_, scratch_, Product::of(weights_), x, y);
    }

private:
    Device& dev_;
    workspace& scratch_;
    const Weights& weights_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

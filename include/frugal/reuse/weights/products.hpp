#pragma once
/// The products of a layer with its weights, named at compile time, so that who computes them is a policy: the CPU from the
/// file's blocks (direct_products), or a device from resident images (image_products).
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/reader_table.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Products of one input with one or more weight matrices: `product<&weights::q, &weights::k, &weights::v>`. The members are
/// quant::weight_view. On a device they are one image: the matrices stacked by rows.
template <auto... Member>
struct FRUGAL_FLAGGED product {
    static_assert(sizeof...(Member) > 0, "frugal: a product has at least one weight matrix: product<&weights::q>");
    static constexpr std::size_t size = sizeof...(Member);
    static constexpr bool is_small = false;
    using members = buffers<Member...>;

    template <class Weights>
    [[nodiscard]] static std::array<quant::weight_view, size> of(const Weights& w) noexcept {
        return {w.*Member...};
    }
    /// Bytes of its matrices; none if the layer lacks the product.
    template <class Weights>
    [[nodiscard]] static std::size_t source_bytes(const Weights& w) noexcept {
        const auto matrices = of(w);
        std::size_t sum = 0;
        for (const quant::weight_view& matrix : matrices) sum += matrices.front().empty() ? 0 : matrix.bytes();
        return sum;
    }
};

/// A product too small to be worth a call of another device: the host computes it from the file, unless the device packs such
/// images too (device::packs_small_products).
template <auto... Member>
struct FRUGAL_FLAGGED small_product : product<Member...> {
    static constexpr bool is_small = true;
};

namespace detail {

template <class Indices, class... Product>
struct FRUGAL_FLAGGED product_table;

// Image i is packed from product i's matrices; mode i says that the host computes product i.
template <std::size_t... Image, class... Product>
struct product_table<std::index_sequence<Image...>, Product...> {
    template <auto Index, class Members>
    struct of;
    template <auto Index, auto... Member>
    struct of<Index, buffers<Member...>> {
        using packer = packs<Index, Member...>;
        using host_reader = reads_on_host<Index, Member...>;
    };
    template <class... Members>
    struct joined {
        using type = buffers<>;
    };
    template <class Members>
    struct joined<Members> {
        using type = Members;
    };
    template <auto... A, auto... B, class... Rest>
    struct joined<buffers<A...>, buffers<B...>, Rest...> : joined<buffers<A..., B...>, Rest...> {};

    using table = reader_table<typename joined<typename Product::members...>::type,
                               typename of<Image, typename Product::members>::packer...,
                               typename of<Image, typename Product::members>::host_reader...>;
};

/// What a store knows of the products that it keeps images of; there may be none.
template <class Weights, class... Product>
struct FRUGAL_FLAGGED product_set {
    using weights = Weights;
    static constexpr std::size_t size = sizeof...(Product);
    using tables = product_table<std::make_index_sequence<size>, Product...>;
    /// Who reads which matrix: derived, see reader_table.
    using table = typename tables::table;

    template <class P>
    static constexpr bool contains = ((std::is_same_v<P, Product>) || ...);
    /// Number of a product's image, and of the mode in which the host computes it.
    template <class P>
    [[nodiscard]] static constexpr std::size_t index_of() noexcept {
        return type_list<Product...>::template index_of<P>();
    }
    template <class P>
    using packer = typename tables::template of<index_of<P>(), typename P::members>::packer;
    template <class P>
    using host_reader = typename tables::template of<index_of<P>(), typename P::members>::host_reader;
    /// Calls `f(type_tag<P>{})` for every product P in order.
    template <class F>
    static constexpr void for_each([[maybe_unused]] F&& f) {
        (f(type_tag<Product>{}), ...);
    }
    /// All modes: the host computes every product.
    static constexpr bit_set all_on_host = table::images;
};

template <class Set, class... Product>
struct FRUGAL_FLAGGED large_products {
    using type = Set;
};
template <class Weights, class... Kept, class First, class... Rest>
struct large_products<product_set<Weights, Kept...>, First, Rest...>
    : std::conditional_t<First::is_small, large_products<product_set<Weights, Kept...>, Rest...>,
                         large_products<product_set<Weights, Kept..., First>, Rest...>> {};

}  // namespace detail

/// All products of one kind of layer, as `Weights` holds their matrices. A matrix belongs to one product.
template <class Weights, class... Product>
struct FRUGAL_FLAGGED product_list : detail::product_set<Weights, Product...> {
    static_assert(sizeof...(Product) > 0, "frugal: a product_list has at least one product");
    /// The products that a device keeps images of.
    template <bool SmallToo>
    using kept = std::conditional_t<SmallToo, detail::product_set<Weights, Product...>,
                                    typename detail::large_products<detail::product_set<Weights>, Product...>::type>;
};

/// y[i][t][r] = sum over c of w[i][r][c] * x[t][c] on the CPU, as one parallel region. x: [tokens, columns]; y[i]: [tokens, rows
/// of w[i]]. Errors: those of ops::grouped_matmul.
template <quant::format_list Formats, device::cpu_target Device, std::size_t N>
[[nodiscard]] status multiply_each(Device& dev, workspace& scratch, const std::array<quant::weight_view, N>& w,
                                   const product_input& x, const std::array<matrix_view<float>, N>& y) {
    workspace::scope scope(scratch);
    FRUGAL_TRY_ASSIGN(const ops::prepared_activations ready, make_ready(dev, scratch, x));
    std::array<ops::matmul_product, N> each;
    for (std::size_t i = 0; i < N; ++i) each[i] = {w[i], ready, y[i]};
    return ops::grouped_matmul<Formats>(dev, scratch, each);
}

/// Computes products on the CPU, from the blocks of the file.
template <quant::format_list Formats, device::cpu_target Device, class Weights,
          activation_sharing_policy Sharing = default_activation_sharing>
class FRUGAL_FLAGGED direct_products {
public:
    direct_products(Device& dev, workspace& scratch, const Weights& weights) noexcept
        : dev_(dev), scratch_(scratch), weights_(weights) {}

    /// x for several products; see share_input.
    [[nodiscard]] result<product_input> share(matrix_view<const float> x) { return share_input<Sharing>(dev_, scratch_, x); }
    /// y[i] = x times the product's matrix i; see multiply_each.
    template <class Product>
    [[nodiscard]] status multiply(const product_input& x, const std::array<matrix_view<float>, Product::size>& y) {
        return multiply_each<Formats>(dev_, scratch_, Product::of(weights_), x, y);
    }

private:
    Device& dev_;
    workspace& scratch_;
    const Weights& weights_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

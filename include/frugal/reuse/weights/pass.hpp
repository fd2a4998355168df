#pragma once
/// A forward pass on a CPU: device, scratch and products travel as one argument, which a layer's `forward` takes and hands to
/// operators. A layer is written for any pass, so it runs wherever a pass has these members and the operators have overloads.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/pass.hpp"
#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Every product is the CPU's, from the blocks of the file. Holds nothing.
template <quant::format_list Formats, activation_sharing_policy Sharing = default_activation_sharing>
class FRUGAL_FLAGGED direct_store {
public:
    using formats = Formats;
    using sharing = Sharing;
    template <class List, class Device>
    using step = direct_products<Formats, Device, typename List::weights, Sharing>;

    template <class List, class Device>
    [[nodiscard]] result<step<List, Device>> begin(Device& dev, workspace& scratch, std::size_t,
                                                   const typename List::weights& w) {
        return step<List, Device>(dev, scratch, w);
    }
};

/// A pass over layers whose weights are multiplied by `Store`: direct_store, or one that keeps images (model/weight_store.hpp).
/// Models device::host_pass. Refers to its arguments.
template <device::cpu_target Device, class Store>
class FRUGAL_FLAGGED cpu_pass {
public:
    using device_type = Device;
    using store_type = Store;
    using formats = typename Store::formats;
    using sharing = typename Store::sharing;
    using isa = typename Device::isa;
    using activations = device::activations_of<Device>;
    static constexpr std::string_view name = Device::name;

    cpu_pass(Device& dev, workspace& scratch, Store& store) noexcept : dev_(&dev), scratch_(&scratch), store_(&store) {}

    [[nodiscard]] Device& device() noexcept { return *dev_; }
    [[nodiscard]] workspace& scratch() noexcept { return *scratch_; }
    [[nodiscard]] Store& store() noexcept { return *store_; }

    [[nodiscard]] auto& counters() const noexcept { return dev_->counters(); }
    [[nodiscard]] std::size_t concurrency() const { return dev_->concurrency(); }
    void run(std::size_t n, device::task_ref f) const { dev_->run(n, f); }
    template <class F>
    void run_ranges(std::size_t n, std::size_t grain, F&& f) const {
        dev_->run_ranges(n, grain, std::forward<F>(f));
    }

    /// Scratch that is taken while a scope lives is given back at its end.
    class scope : workspace::scope {
    public:
        explicit scope(cpu_pass& pass) noexcept : workspace::scope(pass.scratch()) {}
    };
    /// Scratch, not initialised. Errors: out_of_memory.
    [[nodiscard]] result<matrix_view<float>> matrix(std::size_t rows, std::size_t cols) { return scratch_->matrix(rows, cols); }
    /// The same for what a product will read: some devices want its rows padded.
    [[nodiscard]] result<matrix_view<float>> input_matrix(std::size_t rows, std::size_t cols) { return matrix(rows, cols); }
    template <class T>
    [[nodiscard]] result<std::span<T>> array(std::size_t n) {
        return scratch_->template array<T>(n);
    }

    /// The products of a layer for this pass: what List names of `w`, with `share` and `multiply` (see direct_products). `layer`:
    /// its number among all that have this list. Errors: of the store.
    template <class List>
    [[nodiscard]] auto begin(std::size_t layer, const typename List::weights& w) {
        return store_->template begin<List>(*dev_, *scratch_, layer, w);
    }
    /// Rows `ids` of a table: out [ids.size(), columns]. Errors: those of ops::embedding_rows.
    [[nodiscard]] status look_up(const quant::weight_view& table, std::span<const std::int32_t> ids, matrix_view<float> out) {
        return ops::embedding_rows<formats>(*dev_, table, ids, out);
    }

private:
    Device* dev_;
    workspace* scratch_;
    Store* store_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

#pragma once
/// Memory that a model or layer on a GPU takes when it is created and keeps: buffers of its steps, small weights, states.
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/quant/panel/layout.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Owns buffers on a device that live and die together; addresses stay. Everything is zeroed. Move-only.
class FRUGAL_FLAGGED room {
public:
    room(context_ref on, const stream& queue) : on_(std::move(on)), queue_(&queue) {}

    /// Errors: out_of_memory, device_failed, device_lost; what was taken before stays.
    template <class T>
    [[nodiscard]] result<T*> array(std::size_t count) {
        static_assert(std::is_trivially_copyable_v<T>);
        if (count > (std::numeric_limits<std::size_t>::max)() / 2 / sizeof(T))
            return fail(errc::out_of_memory, "an array of ", count, " elements is beyond the address space");
        FRUGAL_TRY_ASSIGN(auto memory, device_memory::allocate(on_, count * sizeof(T)));
        FRUGAL_TRY(on_->check("clear memory", cudaMemsetAsync(memory.data(), 0, memory.bytes(), queue_->get())));
        bytes_ += memory.bytes();
        T* const out = memory.template as<T>();
        buffers_.push_back(std::move(memory));
        return out;
    }
    /// Rows without gaps. Errors: as array().
    [[nodiscard]] result<matrix_view<float>> matrix(std::size_t rows, std::size_t cols) {
        if (cols != 0 && rows > (std::numeric_limits<std::size_t>::max)() / 8 / cols)
            return fail(errc::out_of_memory, "a matrix [", rows, ", ", cols, "] is beyond the address space");
        FRUGAL_TRY_ASSIGN(float* const data, array<float>(rows * cols));
        return matrix_view<float>(data, rows, cols);
    }
    /// As an input of a product is laid out: each row is followed by zeros up to whole groups of columns. Write `cols` of them.
    [[nodiscard]] result<matrix_view<float>> input_matrix(std::size_t rows, std::size_t cols) {
        FRUGAL_TRY_ASSIGN(const auto whole,
                          matrix(rows, (cols + quant::panel_group - 1) / quant::panel_group * quant::panel_group));
        return whole.cols_range(0, cols);
    }
    /// A copy of host values; waits for it. Errors: as array().
    template <class T>
    [[nodiscard]] result<T*> copy(std::span<const T> from) {
        FRUGAL_TRY_ASSIGN(T* const out, array<T>(from.size()));
        FRUGAL_TRY(queue_->upload(out, from.data(), from.size_bytes()));
        FRUGAL_TRY(queue_->synchronize());
        return out;
    }
    /// A small weight of a layer, as operators take it. Errors: as array().
    [[nodiscard]] result<std::span<const float>> keep(std::span<const float> weight) {
        FRUGAL_TRY_ASSIGN(const float* const out, copy(weight));
        return std::span<const float>(out, weight.size());
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

private:
    context_ref on_;
    const stream* queue_;
    std::vector<device_memory> buffers_;
    std::size_t bytes_ = 0;
};

}  // namespace device::gpu

FRUGAL_NAMESPACE_END

#pragma once
/// What the buffers of host_buffers hold: weights in the form that a device packs its images from.
#include <cstddef>
#include <limits>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/quant/formats/f32.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/buffer.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// A weight matrix in the form `Source`, as device::image_target::source names it:
/// - `load<Formats>(dev, w) -> result<std::size_t>`: holds the matrix w from now on; returns the bytes it wrote;
/// - `source()`: what the device packs; `weights()` and `host_formats<Formats>`: the view and the format list by which the
///   host multiplies.
template <class Source>
class FRUGAL_FLAGGED host_weights;

/// Dequantised to f32, in memory that grows to the largest matrix and is reused.
template <>
class host_weights<matrix_view<const float>> {
public:
    template <quant::format_list>
    using host_formats = quant::list<quant::f32>;

    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] result<std::size_t> load(Device& dev, const quant::weight_view& w) {
        if (w.cols != 0 && w.rows > (std::numeric_limits<std::size_t>::max)() / sizeof(float) / w.cols)
            return fail(errc::out_of_memory, "weights [", w.rows, ", ", w.cols, "] in f32 are beyond the address space");
        if (memory_.size() < w.rows * w.cols) {
            memory_ = {};
            FRUGAL_TRY_ASSIGN(memory_, buffer<float>::allocate(w.rows * w.cols));
        }
        rows_ = w.rows;
        cols_ = w.cols;
        FRUGAL_TRY(ops::dequantize<Formats>(dev, w, matrix_view<float>(memory_.data(), rows_, cols_)));
        return rows_ * cols_ * sizeof(float);
    }
    [[nodiscard]] matrix_view<const float> source() const noexcept { return {memory_.data(), rows_, cols_}; }
    [[nodiscard]] quant::weight_view weights() const noexcept {
        return {quant::f32::type, reinterpret_cast<const std::byte*>(memory_.data()), rows_, cols_, cols_ * sizeof(float)};
    }
    void poison() noexcept {
        for (float& value : memory_.span()) value = std::numeric_limits<float>::signaling_NaN();
    }

private:
    buffer<float> memory_;
    std::size_t rows_ = 0, cols_ = 0;
};

/// Where it lies: for devices that pack the blocks of the file. Nothing is written.
template <>
class host_weights<quant::weight_view> {
public:
    template <quant::format_list Formats>
    using host_formats = Formats;

    template <quant::format_list Formats, device::cpu_target Device>
    [[nodiscard]] result<std::size_t> load(Device&, const quant::weight_view& w) {
        if (!w.empty()) FRUGAL_TRY(quant::check_weight_view<Formats>(w));  // a layer may lack a matrix
        view_ = w;
        return std::size_t{0};
    }
    [[nodiscard]] const quant::weight_view& source() const noexcept { return view_; }
    [[nodiscard]] const quant::weight_view& weights() const noexcept { return view_; }
    void poison() noexcept { view_ = {}; }

private:
    quant::weight_view view_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

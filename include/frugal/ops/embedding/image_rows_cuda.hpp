#pragma once
/// Rows of a table whose image is on a GPU.
#include <cstdint>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/ops/embedding/embedding_cuda.hpp"
#include "frugal/quant/list.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops::cuda {

/// y[i] = row rows[i] of the table, decoded; all on the device, rows within it. Queued. Errors: unsupported_format, that of
/// the start.
template <class Device>
[[nodiscard]] status look_up(const device::gpu::pass<Device>& pass, const device::cuda_image& image, const std::int64_t* rows,
                             matrix_view<float> y) {
    const quant::panel_view& table = image.parts().front();
    status started;
    FRUGAL_TRY(quant::visit<typename Device::image_formats>(table.type, [&]<class Format>(type_tag<Format>) {
        started = pass.start(
            [&](cudaStream_t stream) { return embedding_rows<Format>(table.data, table.panel_bytes, rows, y, stream); });
    }));
    return started;
}

}  // namespace ops::cuda

FRUGAL_NAMESPACE_END

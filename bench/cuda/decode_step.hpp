#pragma once
/// A whole decoded token, also of other shapes than those that are measured.
#include <cstddef>
#include <span>

#include "../model/shapes.hpp"
#include "gpu.hpp"

namespace bench {

/// Writes a model of this shape into the folder TMPDIR (or /tmp), takes it to the GPU, and measures a token behind so many others.
void decode_step(report& to, const model_shape& shape, std::span<const std::size_t> depths);

}  // namespace bench

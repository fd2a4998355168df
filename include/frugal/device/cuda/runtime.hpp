#pragma once
/// The CUDA runtime's header, or a sentence where it is missing.
#if !__has_include(<cuda_runtime_api.h>)
#error "frugal: device/cuda needs the headers of the CUDA toolkit; install it and link frugal::cuda"
#endif
#include <cuda_runtime_api.h>

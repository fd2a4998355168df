#pragma once
/// The one header that a kernel includes: CUDA under nvcc, an emulator under a plain C++ compiler in tests, and the few things
/// that need a spelling both accept (shared memory, launching, unrolling).
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "frugal/core/config.hpp"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif defined(FRUGAL_CUDA_EMULATOR)
#include FRUGAL_CUDA_EMULATOR
#else
#error "frugal: CUDA kernels need nvcc; a test links an emulator that names its header in FRUGAL_CUDA_EMULATOR"
#endif

/// Before a loop with a constant trip count. Where kernels are emulated it would only make them slow to compile.
#if defined(__CUDACC__)
#define FRUGAL_UNROLL _Pragma("unroll")
#else
#define FRUGAL_UNROLL
#endif

/// A function of device code.
#define FRUGAL_DEVICE __device__ __forceinline__

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

inline constexpr unsigned full_warp = 0xFFFFFFFFu;
inline constexpr int warp_size = 32;

/// The block's one variable of type T (and Tag) in static shared memory. Declare one struct a kernel and ask for it here; every
/// thread of the block gets the same object, uninitialised.
template <class T, class Tag = T>
FRUGAL_DEVICE T& block_shared() {
    static_assert(std::is_trivially_default_constructible_v<T> && std::is_trivially_destructible_v<T>,
                  "frugal: a type in shared memory has no constructor; remove initialisers");
#if defined(__CUDACC__)
    __shared__ T variable;
    return variable;
#else
    static char key;  // its address names the variable
    return *static_cast<T*>(simt::static_shared(&key, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
#endif
}

/// The block's dynamic shared memory, 16-byte aligned; its size is an argument of the launch.
template <class T>
FRUGAL_DEVICE T* dynamic_shared() {
#if defined(__CUDACC__)
    extern __shared__ __align__(16) unsigned char frugal_dynamic_shared[];
    return reinterpret_cast<T*>(frugal_dynamic_shared);
#else
    return static_cast<T*>(simt::dynamic_shared());
#endif
}

/// Starts `kernel` on a stream. Arguments convert to the kernel's parameter types.
template <class... Parameters, class... Arguments>
[[nodiscard]] inline cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t dynamic_shared_bytes,
                                        cudaStream_t stream, Arguments&&... arguments) {
    static_assert(sizeof...(Parameters) == sizeof...(Arguments),
                  "frugal: the number of arguments is not the kernel's number of parameters");
#if defined(__CUDACC__)
    if (dynamic_shared_bytes > 48 * 1024) {  // more must be asked for
        const cudaError_t status =
            cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(dynamic_shared_bytes));
        if (status != cudaSuccess) return status;
    }
    kernel<<<grid, block, dynamic_shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
    return cudaGetLastError();
#else
    return simt::launch(kernel, grid, block, dynamic_shared_bytes, stream,
                        std::tuple<Parameters...>(static_cast<Parameters>(arguments)...));
#endif
}

}  // namespace device::gpu

FRUGAL_NAMESPACE_END

// fails ROUNDED_ACTIVATIONS: frugal: device::cuda takes activations as they are or in 8 bits; for products in bfloat16 write device::cuda<Arch, Host, device::f32_activations, Formats, device::prefill::bf16_tiles>
// fails NO_CUDA: frugal: device/cuda needs the headers of the CUDA toolkit; install it and link frugal::cuda
// flags NO_CUDA: -nostdinc
// fails NO_CUBLAS: frugal: device/cuda/cublas.hpp needs the headers of cuBLAS; install it with the CUDA toolkit and link frugal::cuda_cublas
// flags NO_CUBLAS: -nostdinc
#if defined(NO_CUDA)
#include "frugal/device/cuda/runtime.hpp"
#elif defined(NO_CUBLAS)
#include "frugal/device/cuda/cublas.hpp"
#else
#include "frugal/device/cuda/activations.hpp"

namespace device = frugal::device;
#if defined(ROUNDED_ACTIVATIONS)
using taken = device::bf16_activations;
#else
using taken = device::q8_activations;
#endif
static_assert(sizeof(device::cuda_activations<taken>::type) > 0);
#endif

int main() {}

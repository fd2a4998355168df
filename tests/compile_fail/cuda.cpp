// fails NO_CUDA: frugal: device/cuda needs the headers of the CUDA toolkit; install it and link frugal::cuda
// flags NO_CUDA: -nostdinc
// fails NO_CUBLAS: frugal: device/cuda/cublas.hpp needs the headers of cuBLAS; install it with the CUDA toolkit and link frugal::cuda_cublas
// flags NO_CUBLAS: -nostdinc
#if defined(NO_CUDA)
#include "frugal/device/cuda/runtime.hpp"
#elif defined(NO_CUBLAS)
#include "frugal/device/cuda/cublas.hpp"
#endif

int main() {}

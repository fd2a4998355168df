// fails NO_CUDA: frugal: device/cuda needs the headers of the CUDA toolkit; install it and link frugal::cuda
// flags NO_CUDA: -nostdinc
#if defined(NO_CUDA)
#include "frugal/device/cuda/runtime.hpp"
#endif

int main() {}

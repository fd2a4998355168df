// fails NO_CUDA: frugal: device/cuda needs the headers of the CUDA toolkit; install it and link frugal::cuda
#if defined(NO_CUDA)
#include "frugal/device/cuda/cuda.hpp"
#endif

int main() {}

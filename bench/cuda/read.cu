// A kernel that does nothing but read: the bandwidth that others are compared with.
#include "gpu.hpp"

namespace {

__global__ void read_all(const float4* from, std::size_t n, float* out) {
    float sum = 0;
    const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < n; i += step) {
        const float4 four = __ldcs(from + i);
        sum += four.x + four.y + four.z + four.w;
    }
    if (sum == 12345.0f) *out = sum;  // never: the memory is zero
}

}  // namespace

void bench::start_reading(const void* from, std::size_t bytes, float* out, int multiprocessors, cudaStream_t queue) {
    read_all<<<static_cast<unsigned>(multiprocessors * 16), 512, 0, queue>>>(static_cast<const float4*>(from),
                                                                             bytes / sizeof(float4), out);
}

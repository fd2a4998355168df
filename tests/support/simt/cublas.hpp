#pragma once
/// The calls of cuBLASLt that the library makes, on the emulated runtime: a test program links these functions instead of
/// libcublasLt. Products of bfloat16 with sums in f32, queued on the stream like a kernel; what they are given is checked.
#include <cstdint>
#include <string_view>

#include <cublasLt.h>

namespace simt {

/// The next call of the named function returns `status` and does nothing else.
void fail_cublas(std::string_view function, cublasStatus_t status);

struct cublas_report {
    int alive = 0;                            ///< handles and descriptions
    std::uint64_t choices = 0, products = 0;  ///< calls of cublasLtMatmulAlgoGetHeuristic and cublasLtMatmul
};
const cublas_report& cublas();

}  // namespace simt

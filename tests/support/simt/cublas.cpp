#include "simt/cublas.hpp"

#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "simt/emulator.hpp"
#include "simt/runtime.hpp"

// The toolkit declares it and leaves it open.
struct cublasLtContext {};

namespace simt {
namespace {

struct state {
    cublas_report report;
    std::string fails;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};
state& self() {
    static thread_local state s;
    return s;
}
/// What has not been destroyed: what belongs to a lost device may stay so, and is no leak. Outlives the thread's other objects.
std::set<const void*>& living() {
    static thread_local auto* const all = new std::set<const void*>;
    return *all;
}
cublasStatus_t enter(std::string_view function) {
    if (self().fails != function) return CUBLAS_STATUS_SUCCESS;
    self().fails.clear();
    return self().status;
}

/// What the opaque descriptions hold.
struct product_description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t turn_a = CUBLAS_OP_N, turn_b = CUBLAS_OP_N;
};
struct matrix_description {
    cudaDataType_t type;
    std::uint64_t rows, cols;
    std::int64_t stride;
};
template <class Description, class Opaque>
Description& of(Opaque* opaque) {
    static_assert(sizeof(Description) <= sizeof(Opaque));
    return *reinterpret_cast<Description*>(opaque);
}
template <class Opaque>
cublasStatus_t make(Opaque** out) {
    *out = new Opaque{};
    living().insert(*out);
    ++self().report.alive;
    return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque>
cublasStatus_t end(Opaque* opaque) {
    living().erase(opaque);
    delete opaque;
    --self().report.alive;
    return CUBLAS_STATUS_SUCCESS;
}

float bf16_at(const void* matrix, std::uint64_t i) {
    const std::uint32_t word = std::uint32_t(static_cast<const std::uint16_t*>(matrix)[i]) << 16;
    float out;
    std::memcpy(&out, &word, sizeof(out));
    return out;
}

/// Whether the matrices are those of d [m, n] = a' [k, m]' b [k, n].
bool fit(const product_description& product, const matrix_description& a, const matrix_description& b,
         const matrix_description& d) {
    const auto whole = [](const matrix_description& m) { return m.rows != 0 && m.cols != 0 && m.stride >= std::int64_t(m.rows); };
    return product.compute == CUBLAS_COMPUTE_32F && product.scale == CUDA_R_32F && product.turn_a == CUBLAS_OP_T &&
           product.turn_b == CUBLAS_OP_N && a.type == CUDA_R_16BF && b.type == CUDA_R_16BF && d.type == CUDA_R_32F && whole(a) &&
           whole(b) && whole(d) && a.rows == b.rows && a.cols == d.rows && b.cols == d.cols && a.stride % 8 == 0 &&
           b.stride % 8 == 0;
}

}  // namespace

void fail_cublas(std::string_view function, cublasStatus_t status) {
    self().fails = function;
    self().status = status;
}
const cublas_report& cublas() { return self().report; }

}  // namespace simt

#define SIMT_ENTER() \
    if (const cublasStatus_t status_ = simt::enter(__func__); status_ != CUBLAS_STATUS_SUCCESS) return status_

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
        default: return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* out) {
    SIMT_ENTER();
    return simt::make(out);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return simt::end(handle); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType_t scale) {
    SIMT_ENTER();
    simt::make(out);
    simt::of<simt::product_description>(*out) = {compute, scale};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) { return simt::end(description); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
    SIMT_ENTER();
    if (attribute != CUBLASLT_MATMUL_DESC_TRANSA || bytes != sizeof(cublasOperation_t)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&simt::of<simt::product_description>(description).turn_a, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type, std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t stride) {
    SIMT_ENTER();
    simt::make(out);
    simt::of<simt::matrix_description>(*out) = {type, rows, cols, stride};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t description) { return simt::end(description); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
    SIMT_ENTER();
    return simt::make(out);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) { return simt::end(wish); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void*, std::size_t bytes) {
    SIMT_ENTER();
    return bytes == (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8u : 4u) ? CUBLAS_STATUS_SUCCESS
                                                                                      : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
    SIMT_ENTER();
    ++simt::self().report.choices;
    using matrix = simt::matrix_description;
    *found = wanted > 0 && simt::fit(simt::of<simt::product_description>(product), simt::of<matrix>(a), simt::of<matrix>(b),
                                     simt::of<matrix>(d))
                 ? 1
                 : 0;
    if (*found != 0) results[0] = {};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t stream) {
    SIMT_ENTER();
    using matrix = simt::matrix_description;
    const matrix w = simt::of<matrix>(a_layout), x = simt::of<matrix>(b_layout), y = simt::of<matrix>(d_layout);
    if (!simt::fit(simt::of<simt::product_description>(product), w, x, y) || c != d || *static_cast<const float*>(alpha) != 1 ||
        *static_cast<const float*>(beta) != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    ++simt::self().report.products;
    const cudaError_t queued = simt::enqueue_kernel(stream, [=] {
        for (std::uint64_t t = 0; t < y.cols; ++t) {
            float* const row = static_cast<float*>(d) + t * std::uint64_t(y.stride);
            for (std::uint64_t r = 0; r < y.rows; ++r) {
                double sum = 0;  // one rounding; a device may round and order differently
                for (std::uint64_t i = 0; i < w.rows; ++i)
                    sum += double(simt::bf16_at(a, r * std::uint64_t(w.stride) + i)) *
                           double(simt::bf16_at(b, t * std::uint64_t(x.stride) + i));
                row[r] = float(sum);
            }
            simt::mark_initialised(row, y.rows * sizeof(float));
        }
    });
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}

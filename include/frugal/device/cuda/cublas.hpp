#pragma once
/// Products of prefills by NVIDIA's cuBLASLt, a policy of device::cuda. Only who includes this header needs the library: link
/// frugal::cuda_cublas.
#if !__has_include(<cublasLt.h>)
#error "frugal: device/cuda/cublas.hpp needs the headers of cuBLAS; install it with the CUDA toolkit and link frugal::cuda_cublas"
#endif
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cublasLt.h>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/memory.hpp"
#include "frugal/device/cuda/prefill.hpp"
#include "frugal/device/cuda/products.hpp"
#include "frugal/quant/panels.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// Success, or the error of a call of cuBLASLt: its name for it, and what to do.
[[nodiscard]] inline status check(std::string_view doing, cublasStatus_t code) {
    if (code == CUBLAS_STATUS_SUCCESS) return {};
    const bool full = code == CUBLAS_STATUS_ALLOC_FAILED;
    const bool never = code == CUBLAS_STATUS_ARCH_MISMATCH || code == CUBLAS_STATUS_NOT_SUPPORTED;
    return fail(full    ? errc::out_of_memory
                : never ? errc::unsupported
                        : errc::device_failed,
                "cuBLAS cannot ", doing, ": ", std::string_view(cublasLtGetStatusName(code)), " (",
                full    ? "the device's memory is full; evict images or lower the residency budget"
                : never ? "the library has no product for this device; use device::prefill::bf16_tiles"
                        : "the device may stay usable",
                ")");
}

namespace detail {
struct FRUGAL_FLAGGED end_cublas {
    context_ref on;
    void operator()(cublasLtHandle_t handle) const noexcept {
        if (on != nullptr && !on->lost) (void)cublasLtDestroy(handle);
    }
};
template <auto Destroy>
struct FRUGAL_FLAGGED end_description {
    template <class T>
    void operator()(T* made) const noexcept {
        (void)Destroy(made);
    }
};
template <class Pointer, auto Destroy>
using description = std::unique_ptr<std::remove_pointer_t<Pointer>, end_description<Destroy>>;
}  // namespace detail

/// Products of matrices in bfloat16 with sums in f32. Move-only; it opens the library at its first product.
class FRUGAL_FLAGGED cublas_products {
public:
    /// y[t][r] = sum over c of w[r][c] * x[t][c], queued on the stream. On the device: w [rows][cols], x [tokens][cols], y
    /// [tokens][y_stride]; pointers 16-byte aligned, cols a multiple of 8. Errors: out_of_memory, unsupported, device_failed,
    /// device_lost.
    [[nodiscard]] status multiply(const context_ref& on, const stream& queue, const bfloat16* w, std::size_t rows,
                                  std::size_t cols, const bfloat16* x, std::size_t tokens, float* y, std::size_t y_stride) {
        FRUGAL_TRY(open(on));
        // The library's matrices lie column by column: y' [rows, tokens] = w'' [rows, cols] x' [cols, tokens].
        cublasLtMatmulDesc_t made = nullptr;
        FRUGAL_TRY(check("describe a product", cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
        const detail::description<cublasLtMatmulDesc_t, &cublasLtMatmulDescDestroy> product(made);
        const cublasOperation_t turned = CUBLAS_OP_T;
        FRUGAL_TRY(check("describe a product",
                         cublasLtMatmulDescSetAttribute(made, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned))));
        FRUGAL_TRY_ASSIGN(const layout w_layout, describe(CUDA_R_16BF, cols, rows, cols));
        FRUGAL_TRY_ASSIGN(const layout x_layout, describe(CUDA_R_16BF, cols, tokens, cols));
        FRUGAL_TRY_ASSIGN(const layout y_layout, describe(CUDA_R_32F, rows, tokens, y_stride));
        const shape of{rows, cols, tokens, y_stride};
        const chosen* way = nullptr;
        for (const chosen& each : chosen_)
            if (each.of == of) way = &each;
        if (way == nullptr) {
            FRUGAL_TRY_ASSIGN(const cublasLtMatmulAlgo_t algorithm, choose(made, w_layout, x_layout, y_layout));
            way = &chosen_.emplace_back(chosen{of, algorithm});
        }
        const float one = 1.0f, zero = 0.0f;
        return check("start a product",
                     cublasLtMatmul(handle_.get(), made, &one, w, w_layout.get(), x, x_layout.get(), &zero, y, y_layout.get(), y,
                                    y_layout.get(), &way->algorithm, workspace_.data(), workspace_.bytes(), queue.get()));
    }

private:
    /// What NVIDIA advises for its newer devices.
    static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

    struct shape {
        std::size_t rows, cols, tokens, y_stride;
        friend bool operator==(const shape&, const shape&) = default;
    };
    struct chosen {
        shape of;
        cublasLtMatmulAlgo_t algorithm;
    };
    using layout = detail::description<cublasLtMatrixLayout_t, &cublasLtMatrixLayoutDestroy>;

    [[nodiscard]] status open(const context_ref& on) {
        if (handle_ != nullptr) return {};
        FRUGAL_TRY_ASSIGN(workspace_, device_memory::allocate(on, workspace_bytes));
        cublasLtHandle_t made = nullptr;
        FRUGAL_TRY(check("start", cublasLtCreate(&made)));
        handle_ = owner(made, {on});
        return {};
    }
    [[nodiscard]] static result<layout> describe(cudaDataType_t type, std::size_t rows, std::size_t cols, std::size_t stride) {
        cublasLtMatrixLayout_t made = nullptr;
        FRUGAL_TRY(
            check("describe a matrix", cublasLtMatrixLayoutCreate(&made, type, rows, cols, static_cast<std::int64_t>(stride))));
        return layout(made);
    }
    [[nodiscard]] result<cublasLtMatmulAlgo_t> choose(cublasLtMatmulDesc_t product, const layout& w, const layout& x,
                                                      const layout& y) const {
        cublasLtMatmulPreference_t made = nullptr;
        FRUGAL_TRY(check("choose a product", cublasLtMatmulPreferenceCreate(&made)));
        const detail::description<cublasLtMatmulPreference_t, &cublasLtMatmulPreferenceDestroy> wish(made);
        const std::size_t room = workspace_.bytes();
        FRUGAL_TRY(check("choose a product", cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                                                  &room, sizeof(room))));
        const std::uint32_t aligned = 16;
        for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES})
            FRUGAL_TRY(check("choose a product", cublasLtMatmulPreferenceSetAttribute(made, operand, &aligned, sizeof(aligned))));
        const std::uint32_t of_floats = sizeof(float);
        for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            FRUGAL_TRY(
                check("choose a product", cublasLtMatmulPreferenceSetAttribute(made, operand, &of_floats, sizeof(of_floats))));
        cublasLtMatmulHeuristicResult_t best{};
        int found = 0;
        FRUGAL_TRY(check("choose a product", cublasLtMatmulAlgoGetHeuristic(handle_.get(), product, w.get(), x.get(), y.get(),
                                                                            y.get(), made, 1, &best, &found)));
        if (found == 0) return check("choose a product", CUBLAS_STATUS_NOT_SUPPORTED).error();
        return best.algo;
    }

    using owner = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, detail::end_cublas>;
    owner handle_{nullptr, {}};
    device_memory workspace_;
    std::vector<chosen> chosen_;
};

}  // namespace device::gpu

namespace device::prefill {

/// By cuBLASLt, for batches of more than 16 tokens: weights are decoded into memory of the device, and both operands rounded to
/// bfloat16, as bf16_tiles does, with the same bound on the error. Which order sums are made in is the library's choice: bits
/// depend on the number of tokens, on the device and on the library's version. Takes up to WeightBytes for decoded weights (but
/// no less than 16 rows), and as much as the activations need; it allocates where a product needs more than those before: not
/// while a graph is recorded. It serves device::cuda's own products; steps of whole models that stay on the device (gpu::pass)
/// are recorded, and take bf16_tiles instead.
template <std::size_t WeightBytes>
struct FRUGAL_FLAGGED cublas_within {
    static constexpr bool rounds = true;

    class multiplier {
    public:
        template <quant::format Format>
        [[nodiscard]] status multiply(const gpu::context_ref& on, const gpu::stream& queue, const gpu::panel_product& product) {
            const std::size_t cols = product.x.groups * quant::panel_group, tokens = product.x.tokens;
            const std::size_t most = WeightBytes / (cols * sizeof(bfloat16)) / quant::panel_rows * quant::panel_rows;
            const std::size_t at_once = most < quant::panel_rows ? quant::panel_rows : most < product.rows ? most : product.rows;
            FRUGAL_TRY(grow(on, weights_, at_once * cols * sizeof(bfloat16)));
            FRUGAL_TRY(grow(on, activations_, tokens * cols * sizeof(bfloat16)));
            auto* const x = activations_.as<bfloat16>();
            FRUGAL_TRY(
                on->check("round activations", gpu::round_values<bfloat16>(product.x.values, tokens * cols, x, queue.get())));
            gpu::panel_product part = product;
            for (std::size_t row = 0; row < product.rows; row += at_once) {
                part.rows = product.rows - row < at_once ? product.rows - row : at_once;
                part.weights = product.weights + row / quant::panel_rows * product.panel_bytes;
                auto* const w = weights_.as<bfloat16>();
                FRUGAL_TRY(on->check("decode weights", gpu::decode_panels<Format>(part, w, queue.get())));
                FRUGAL_TRY(products_.multiply(on, queue, w, part.rows, cols, x, tokens, product.y + row, product.y_stride));
            }
            return {};
        }

    private:
        [[nodiscard]] static status grow(const gpu::context_ref& on, gpu::device_memory& room, std::size_t bytes) {
            if (room.bytes() >= bytes) return {};
            room = {};  // waits for what still reads it
            FRUGAL_TRY_ASSIGN(room, gpu::device_memory::allocate(on, bytes));
            return {};
        }

        gpu::cublas_products products_;
        gpu::device_memory weights_, activations_;
    };
};
using cublas = cublas_within<(std::size_t{64} << 20)>;
static_assert(prefill_policy<cublas>);

}  // namespace device::prefill

FRUGAL_NAMESPACE_END

// Prefills by cuBLASLt as a policy of device::cuda, with a stand-in for the library: products are those of operands rounded to
// bfloat16, failures are returned, nothing is left behind.
#include "frugal/device/cuda/cublas.hpp"

#include "frugal/device/cuda/cuda.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/device/cuda/panels/decode.cuh"
#include "frugal/device/cuda/panels/multiply.cuh"
#include "simt/cublas.hpp"
#include "simt_data.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace quant = frugal::quant;
using frugal::errc;
using frugal::matrix_view;
using frugal::workspace;

namespace {

using formats = quant::list<quant::q6_k, quant::f32>;
template <class Activations = device::f32_activations, class Prefill = device::prefill::cublas>
using gpu_of = device::cuda<device::sm_90, device::cpu<frugal::isa::baseline>, Activations, formats, Prefill>;

/// Leaves the emulated machine as it was.
struct machine {
    int alive = simt::cublas().alive, lost = 0;
    machine() { simt::reset_runtime(); }
    ~machine() {
        CHECK(simt::runtime().allocations == 0);
        CHECK(simt::cublas().alive == alive + lost);
        simt::reset_runtime();
    }
};

struct stacked {
    static constexpr std::size_t cols = 256;
    std::vector<std::byte> a, b;
    std::vector<quant::weight_view> parts;
    stacked() : a(test::random_weights<quant::q6_k>(37, cols, 1)), b(test::random_weights<quant::f32>(5, cols, 2)) {
        parts = {quant::make_weight_view<formats>(quant::q6_k::type, a, 37, cols).value(),
                 quant::make_weight_view<formats>(quant::f32::type, b, 5, cols).value()};
    }
};

struct results {
    std::vector<float> first, second;
    std::vector<matrix_view<float>> views;
    explicit results(std::size_t tokens) : first(tokens * 37, -7.0f), second(tokens * 5, -7.0f) {
        views = {{first.data(), tokens, 37}, {second.data(), tokens, 5}};
    }
};

double rounded(float x) { return static_cast<double>(frugal::to_float(frugal::to_bfloat16(x))); }

/// How often part `p` of y is not what operands in bfloat16 give.
std::size_t wrong(const stacked& w, const std::vector<float>& x, const results& y, std::size_t p) {
    const auto decoded = quant::dequantize<formats>(w.parts[p]).value();
    std::size_t bad = 0;
    for (std::size_t t = 0; t < y.views[p].rows(); ++t)
        for (std::size_t r = 0; r < w.parts[p].rows; ++r) {
            double want = 0;
            for (std::size_t c = 0; c < w.cols; ++c) want += rounded(decoded[r * w.cols + c]) * rounded(x[t * w.cols + c]);
            if (y.views[p](t, r) != static_cast<float>(want)) ++bad;
        }
    return bad;
}

}  // namespace

TEST_CASE("weights decoded to bfloat16 are the rounded weights, for every format and tail of rows and columns") {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        constexpr std::size_t rows = 21;
        for (const std::size_t cols : {std::size_t{Format::block_size == 1 ? 40 : Format::block_size}, std::size_t{512}}) {
            if (cols == 512 && Format::block_size == 32) continue;  // the groups of a block are all alike
            CAPTURE(cols);
            const std::size_t stride = (cols + 31) / 32 * 32;
            const auto bytes = test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(cols));
            const auto w = quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols).value();
            const auto decoded = quant::dequantize<quant::all>(w).value();
            const auto packed = quant::panel_weights::pack<quant::all>(std::span(&w, 1)).value();
            const auto* from = reinterpret_cast<const unsigned char*>(packed.parts()[0].data);
            const auto run = [&] {
                simt::device_array<unsigned char> weights(std::vector<unsigned char>(from, from + packed.bytes()));
                simt::device_array<frugal::bfloat16> out(rows * stride);
                device::gpu::panel_product product;
                product.weights = reinterpret_cast<const std::byte*>(weights.data());
                product.rows = rows;
                product.panel_bytes = packed.parts()[0].panel_bytes;
                product.x.groups = stride / 32;
                const cudaError_t started = device::gpu::decode_panels<Format>(product, out.data(), nullptr);
                REQUIRE(started == cudaSuccess);
                return out.to_host();
            };
            const auto got = run();
            std::size_t bad = 0;
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = 0; c < stride; ++c) {
                    const auto want = frugal::to_bfloat16(c < cols ? decoded[r * cols + c] : 0.0f);
                    if (frugal::to_float(got[r * stride + c]) != frugal::to_float(want)) ++bad;
                }
            CHECK(bad == 0);
            CHECK(simt::same_under_all_schedules(run, 1));
        }
    });
}

TEST_CASE("batches of more than 16 tokens are cuBLAS's, others exact; 8-bit activations go their own way") {
    const machine guard;
    const stacked w;
    auto dev = gpu_of<>::open(0).value();
    auto exact = gpu_of<device::f32_activations, device::prefill::exact>::open(0).value();
    const auto image = dev.pack(w.parts).value();
    const auto exact_image = exact.pack(w.parts).value();
    const auto x = test::random_floats(600 * w.cols, 3);
    workspace scratch;
    const std::uint64_t before = simt::cublas().products, choices = simt::cublas().choices;
    results few(16), want(16);
    REQUIRE(dev.multiply(scratch, image, {x.data(), 16, w.cols}, few.views));
    REQUIRE(exact.multiply(scratch, exact_image, {x.data(), 16, w.cols}, want.views));
    CHECK(few.first == want.first);
    CHECK(few.second == want.second);
    CHECK(simt::cublas().products == before);
    for (const std::size_t tokens : {std::size_t{17}, std::size_t{600}, std::size_t{17}}) {  // 600: more than go there at once
        results y(tokens);
        REQUIRE(dev.multiply(scratch, image, {x.data(), tokens, w.cols}, y.views));
        CHECK(wrong(w, x, y, 0) == 0);
        CHECK(wrong(w, x, y, 1) == 0);
    }
    CHECK(simt::cublas().products == before + 8);
    CHECK(simt::cublas().choices == choices + 6);  // each shape once: 17, 512 and 88 tokens of two parts

    auto rounding = gpu_of<device::q8_activations>::open(0).value();
    const auto rounding_image = rounding.pack(w.parts).value();
    results y(17);
    REQUIRE(rounding.multiply(scratch, rounding_image, {x.data(), 17, w.cols}, y.views));
    CHECK(wrong(w, x, y, 0) != 0);  // codes, by integers
    CHECK(wrong(w, x, y, 1) == 0);
}

TEST_CASE("a failure of cuBLAS is returned with its name, and leaves the device usable") {
    const machine guard;
    const stacked w;
    auto dev = gpu_of<>::open(0).value();
    const auto image = dev.pack(w.parts).value();
    const auto x = test::random_floats(17 * w.cols, 3);
    workspace scratch;
    const auto fails = [&](errc code, std::string_view name) {
        const auto failed = dev.multiply(scratch, image, {x.data(), 17, w.cols}, results(17).views);
        REQUIRE(!failed);
        CHECK(failed.error().code == code);
        CHECK(failed.error().message.find(name) != std::string::npos);
        CHECK(!dev.lost());
    };
    for (const char* call : {"cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
                             "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
                             "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}) {
        CAPTURE(call);
        simt::fail_cublas(call, CUBLAS_STATUS_INVALID_VALUE);
        fails(errc::device_failed, "CUBLAS_STATUS_INVALID_VALUE");
    }
    simt::fail_cublas("cublasLtMatmul", CUBLAS_STATUS_ALLOC_FAILED);
    fails(errc::out_of_memory, "residency budget");
    simt::fail_cublas("cublasLtMatmulDescCreate", CUBLAS_STATUS_NOT_SUPPORTED);
    fails(errc::unsupported, "bf16_tiles");
    results y(17);
    REQUIRE(dev.multiply(scratch, image, {x.data(), 17, w.cols}, y.views));
    CHECK(wrong(w, x, y, 0) == 0);
}

TEST_CASE("weights beyond the policy's memory are decoded some rows at a time") {
    const machine guard;
    const stacked w;
    const auto x = test::random_floats(20 * w.cols, 3);
    const auto run = [&]<class Prefill>(frugal::type_tag<Prefill>) {
        auto dev = gpu_of<device::f32_activations, Prefill>::open(0).value();
        const auto image = dev.pack(w.parts).value();
        const std::uint64_t before = simt::cublas().products;
        workspace scratch;
        results y(20);
        REQUIRE(dev.multiply(scratch, image, {x.data(), 20, w.cols}, y.views));
        CHECK(wrong(w, x, y, 0) == 0);
        CHECK(wrong(w, x, y, 1) == 0);
        return simt::cublas().products - before;
    };
    CHECK(run(frugal::type_tag<device::prefill::cublas_within<2 * w.cols * 35>>{}) == 3);  // 37 rows: 32 and 5; 5 rows
    CHECK(run(frugal::type_tag<device::prefill::cublas_within<1>>{}) == 4);                // 16, 16 and 5; 5
}

TEST_CASE("a lost device takes the library's handle with it; reopened, it has another") {
    machine guard;
    guard.lost = 1;
    const stacked w;
    auto dev = gpu_of<>::open(0).value();
    const auto x = test::random_floats(17 * w.cols, 3);
    workspace scratch;
    results y(17);
    {
        const auto image = dev.pack(w.parts).value();
        REQUIRE(dev.multiply(scratch, image, {x.data(), 17, w.cols}, y.views));
        simt::fail_call("cudaStreamSynchronize", cudaErrorLaunchFailure, 0, true);
        CHECK(dev.multiply(scratch, image, {x.data(), 17, w.cols}, y.views).error().code == errc::device_lost);
    }
    REQUIRE(dev.reopen());
    const auto image = dev.pack(w.parts).value();
    REQUIRE(dev.multiply(scratch, image, {x.data(), 17, w.cols}, y.views));
    CHECK(wrong(w, x, y, 0) == 0);
}

// device::cuda on the emulated runtime: images, products, errors by CUDA's name, and a process that stays usable.
#include "frugal/device/cuda/cuda.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/device/cuda/panels/multiply.cuh"
#include "frugal/device/cuda/panels/tiles.cuh"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/conv1d/conv1d_cuda.cuh"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.cuh"
#include "frugal/ops/matmul/image_matmul.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/norm/norm_cuda.cuh"
#include "frugal/ops/sampling/sampling_cuda.cuh"
#include "weights.hpp"

namespace device = frugal::device;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using frugal::errc;
using frugal::matrix_view;
using frugal::workspace;

namespace {

using formats = quant::list<quant::q8_0, quant::f32>;
template <class Activations = device::f32_activations>
using gpu_of = device::cuda<device::sm_90, device::cpu<frugal::isa::baseline, frugal::counters_on>, Activations, formats>;
using gpu = gpu_of<>;

/// Leaves the emulated machine as it was.
struct machine {
    machine() { simt::reset_runtime(); }
    ~machine() {
        CHECK(simt::runtime().allocations == 0);
        CHECK(simt::runtime().pinned == 0);
        CHECK(simt::runtime().streams == 0);
        CHECK(simt::runtime().graphs == 0);
        simt::reset_runtime();
    }
};

struct stacked {
    std::vector<std::byte> a, b;
    std::vector<quant::weight_view> parts;
    std::size_t cols = 96;
    stacked() : a(test::random_weights<quant::q8_0>(21, 96, 1)), b(test::random_weights<quant::f32>(5, 96, 2)) {
        parts = {quant::make_weight_view<formats>(quant::q8_0::type, a, 21, cols).value(),
                 quant::make_weight_view<formats>(quant::f32::type, b, 5, cols).value()};
    }
};

struct results {
    std::vector<float> first, second;
    std::vector<matrix_view<float>> views;
    explicit results(std::size_t tokens) : first(tokens * 21, -7.0f), second(tokens * 5, -7.0f) {
        views = {{first.data(), tokens, 21}, {second.data(), tokens, 5}};
    }
};

bool names(const frugal::error& e, std::string_view cuda_error) { return e.message.find(cuda_error) != std::string::npos; }

}  // namespace

TEST_CASE("products of an image: those of the decoded weights, the same bits for any batch") {
    const machine guard;
    const stacked w;
    const auto run = [&]<class Activations>(frugal::type_tag<Activations>, double tolerance) {
        auto dev = gpu_of<Activations>::open(0);
        REQUIRE(dev.has_value());
        const auto image = dev->pack(w.parts);
        REQUIRE(image.has_value());
        CHECK(image->bytes() == simt::runtime().allocated_bytes);
        CHECK(dev->counters().read(frugal::counter::image_bytes_uploaded) == image->bytes());
        constexpr std::size_t tokens = 600;  // more than go to the device at once
        const auto x = test::random_floats(tokens * w.cols, 3);
        workspace scratch;
        results all(tokens);
        REQUIRE(ops::image_matmul(*dev, scratch, *image, {x.data(), tokens, w.cols}, all.views));
        for (std::size_t part = 0; part < 2; ++part) {
            const auto decoded = quant::dequantize<formats>(w.parts[part]).value();
            const std::size_t rows = w.parts[part].rows;
            for (std::size_t t = 0; t < tokens; t += 37)
                for (std::size_t r = 0; r < rows; ++r) {
                    double want = 0, size = 0;
                    for (std::size_t c = 0; c < w.cols; ++c) {
                        const double term = static_cast<double>(decoded[r * w.cols + c]) * static_cast<double>(x[t * w.cols + c]);
                        want += term, size += std::abs(term);
                    }
                    CHECK(std::abs(static_cast<double>(all.views[part](t, r)) - want) <= tolerance * size);
                }
        }
        for (const std::size_t t : {0u, 511u, 512u, 599u}) {
            results one(1);
            REQUIRE(dev->multiply(scratch, *image, {x.data() + t * w.cols, 1, w.cols}, one.views));
            for (std::size_t part = 0; part < 2; ++part)
                CHECK(std::memcmp(one.views[part].data(), all.views[part].row(t), w.parts[part].rows * sizeof(float)) == 0);
        }
        // Rows with something between them.
        std::vector<float> spread(2 * 100, 9.0f), wide(2 * 30, -7.0f);
        std::copy_n(x.begin(), w.cols, spread.begin());
        std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(w.cols), w.cols, spread.begin() + 100);
        results second(2);
        second.views[0] = {wide.data(), 2, 21, 30};
        REQUIRE(dev->multiply(scratch, *image, {spread.data(), 2, w.cols, 100}, second.views));
        CHECK(std::memcmp(wide.data(), all.views[0].row(0), 21 * sizeof(float)) == 0);
        CHECK(std::memcmp(wide.data() + 30, all.views[0].row(1), 21 * sizeof(float)) == 0);
        CHECK(wide[21] == -7.0f);
        CHECK(dev->counters().read(frugal::counter::image_products) == 6);
        // Nothing to do, and what cannot be done.
        CHECK(dev->multiply(scratch, *image, {x.data(), 0, w.cols}, results(0).views));
        CHECK(dev->multiply(scratch, *image, {x.data(), 1, w.cols - 1}, results(1).views).error().code == errc::shape_mismatch);
    };
    run(frugal::type_tag<device::f32_activations>{}, 1e-5);
    run(frugal::type_tag<device::q8_activations>{}, 3e-2);
}

TEST_CASE("prefill by matrix units is a policy of the device: batches of more than 16 tokens are rounded, others exact") {
    const machine guard;
    const stacked w;
    auto exact = gpu::open(0).value();
    auto rounding = device::cuda<device::sm_90, device::cpu<frugal::isa::baseline>, device::f32_activations, formats,
                                 device::prefill::bf16_tiles>::open(0)
                        .value();
    const auto image = exact.pack(w.parts).value();
    const auto rounded_image = rounding.pack(w.parts).value();
    workspace scratch;
    for (const std::size_t tokens : {std::size_t{16}, std::size_t{17}}) {
        const auto x = test::random_floats(tokens * w.cols, 3);
        results want(tokens), got(tokens);
        REQUIRE(exact.multiply(scratch, image, {x.data(), tokens, w.cols}, want.views));
        REQUIRE(rounding.multiply(scratch, rounded_image, {x.data(), tokens, w.cols}, got.views));
        CHECK((got.first == want.first) == (tokens == 16));
        CHECK((got.second == want.second) == (tokens == 16));
        for (std::size_t part = 0; part < 2; ++part) {
            const auto decoded = quant::dequantize<formats>(w.parts[part]).value();
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t r = 0; r < w.parts[part].rows; ++r) {
                    double size = 0;
                    for (std::size_t c = 0; c < w.cols; ++c)
                        size += std::abs(static_cast<double>(decoded[r * w.cols + c]) * static_cast<double>(x[t * w.cols + c]));
                    CHECK(std::abs(static_cast<double>(got.views[part](t, r)) - static_cast<double>(want.views[part](t, r))) <=
                          0x1.01p-8 * size);
                }
        }
    }
}

TEST_CASE("packing refuses what it cannot multiply, and leaks nothing") {
    const machine guard;
    auto dev = gpu::open(0).value();
    stacked w;
    w.parts[1].type = quant::q4_0::type;
    CHECK(dev.pack(w.parts).error().code == errc::unsupported_format);
    w = {};
    w.parts[1].cols = 64;
    CHECK(dev.pack(w.parts).error().code == errc::shape_mismatch);
    CHECK(simt::runtime().allocations == 0);
    const auto nothing = dev.pack({});
    REQUIRE(nothing.has_value());
    CHECK(nothing->bytes() == 0);
}

TEST_CASE("no device, no driver, a wrong architecture: an error with CUDA's name and what to do") {
    const machine guard;
    simt::device().devices = 0;
    auto none = gpu::open(0);
    CHECK(none.error().code == errc::device_failed);
    CHECK(names(none.error(), "cudaErrorNoDevice"));
    CHECK(names(none.error(), "CUDA_VISIBLE_DEVICES"));
    simt::device() = {};
    simt::device().driver_version = 12040;
    auto old = gpu::open(0);
    CHECK(old.error().code == errc::device_failed);
    CHECK(names(old.error(), "cudaErrorInsufficientDriver"));
    CHECK(names(old.error(), "install a driver"));
    simt::device() = {};
    for (const int index : {-1, 1}) {
        auto missing = gpu::open(index);
        CHECK(missing.error().code == errc::device_failed);
        CHECK(names(missing.error(), "cudaErrorInvalidDevice"));
    }
    simt::device().major = 8, simt::device().minor = 6;
    auto other = gpu::open(0);
    CHECK(other.error().code == errc::unsupported);
    CHECK(names(other.error(), "cudaErrorNoKernelImageForDevice"));
    CHECK(names(other.error(), "8.6"));
    CHECK(names(other.error(), "sm_90"));
    CHECK(device::cuda<device::sm_80>::open(0).has_value());  // 8.6 runs code for 8.0
    static_assert(!device::runs_on<device::sm_80>(9, 0) && device::runs_on<device::sm_120>(12, 1));
    simt::device() = {};
    CHECK(gpu::open(0).has_value());
}

TEST_CASE("out of memory while packing or multiplying: returned, and the device goes on") {
    const machine guard;
    auto dev = gpu::open(0).value();
    const stacked w;
    simt::device().memory = 1000;
    auto full = dev.pack(w.parts);
    CHECK(full.error().code == errc::out_of_memory);
    CHECK(names(full.error(), "cudaErrorMemoryAllocation"));
    CHECK(names(full.error(), "residency budget"));
    CHECK(simt::runtime().allocations == 0);
    simt::device() = {};
    const auto image = dev.pack(w.parts);
    REQUIRE(image.has_value());
    const auto x = test::random_floats(w.cols, 3);
    workspace scratch;
    simt::fail_call("cudaMalloc", cudaErrorMemoryAllocation);
    CHECK(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views).error().code == errc::out_of_memory);
    simt::fail_call("cudaMallocHost", cudaErrorMemoryAllocation);
    CHECK(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views).error().code == errc::out_of_memory);
    CHECK(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views));
    CHECK(!dev.lost());
}

TEST_CASE("each call that fails while packing or multiplying is returned, and leaves the device usable") {
    const machine guard;
    auto dev = gpu_of<device::q8_activations>::open(0).value();
    const stacked w;
    const auto x = test::random_floats(w.cols, 3);
    workspace scratch;
    for (const char* call : {"cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize"}) {
        CAPTURE(call);
        simt::fail_call(call, cudaErrorInvalidValue);
        const auto failed = dev.pack(w.parts);
        CHECK(failed.error().code == errc::device_failed);
        CHECK(names(failed.error(), "cudaErrorInvalidValue"));
        CHECK(simt::runtime().allocations == 0);
    }
    const auto image = dev.pack(w.parts);
    REQUIRE(image.has_value());
    results want(1);
    REQUIRE(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, want.views));
    for (const char* call : {"cudaMemcpyAsync", "launch", "cudaStreamSynchronize"})
        for (const int skip : {0, 1}) {
            if (skip == 1 && std::string_view(call) == "cudaStreamSynchronize") continue;
            CAPTURE(call);
            CAPTURE(skip);
            simt::fail_call(call, cudaErrorLaunchOutOfResources, skip);
            const auto failed = dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views);
            CHECK(failed.error().code == errc::device_failed);
            CHECK(names(failed.error(), "cudaErrorLaunchOutOfResources"));
            CHECK(!dev.lost());
            results again(1);
            REQUIRE(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, again.views));
            CHECK(again.first == want.first);
            CHECK(again.second == want.second);
        }
}

TEST_CASE("a kernel that fails loses the device and its images; reopen() brings it back") {
    const machine guard;
    auto dev = gpu::open(0).value();
    const auto generation = dev.generation();
    const stacked w;
    const auto x = test::random_floats(w.cols, 3);
    workspace scratch;
    {
        const auto image = dev.pack(w.parts);
        REQUIRE(image.has_value());
        results want(1);
        REQUIRE(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, want.views));
        simt::fail_call("cudaStreamSynchronize", cudaErrorIllegalAddress, 0, true);
        const auto lost = dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views);
        CHECK(lost.error().code == errc::device_lost);
        CHECK(names(lost.error(), "cudaErrorIllegalAddress"));
        CHECK(names(lost.error(), "reopen()"));
        CHECK(dev.lost());
        CHECK(dev.generation() != generation);
        CHECK(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views).error().code == errc::device_lost);
        CHECK(dev.pack(w.parts).error().code == errc::device_lost);
        REQUIRE(dev.reopen());
        // The old image is refused, and frees nothing that is now somebody else's.
        CHECK(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views).error().code == errc::device_lost);
        const auto again = dev.pack(w.parts);
        REQUIRE(again.has_value());
        results got(1);
        REQUIRE(dev.multiply(scratch, *again, {x.data(), 1, w.cols}, got.views));
        CHECK(got.first == want.first);
    }
}

TEST_CASE("an image of another device is refused") {
    const machine guard;
    auto one = gpu::open(0).value(), other = gpu::open(0).value();
    CHECK(one.generation() != other.generation());
    const stacked w;
    const auto image = one.pack(w.parts);
    REQUIRE(image.has_value());
    const auto x = test::random_floats(w.cols, 3);
    workspace scratch;
    CHECK(other.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views).error().code == errc::device_lost);
    auto moved = std::move(one);
    CHECK(moved.multiply(scratch, *image, {x.data(), 1, w.cols}, results(1).views));
}

TEST_CASE("a graph replays recorded products; allocating while recording is an error") {
    const machine guard;
    auto dev = gpu::open(0).value();
    const stacked w;
    const auto image = dev.pack(w.parts);
    REQUIRE(image.has_value());
    auto x = test::random_floats(w.cols, 3);
    auto room = device::gpu::device_memory::allocate(dev.context(), (96 + 21) * sizeof(float)).value();
    float* const values = room.as<float>();
    device::gpu::panel_product product;
    product.weights = image->parts()[0].data;
    product.rows = 21;
    product.panel_bytes = image->parts()[0].panel_bytes;
    product.x.values = values;
    product.x.tokens = 1;
    product.x.groups = 3;
    product.y = values + 96;
    product.y_stride = 21;
    std::vector<float> y(21);
    const auto recorded = device::gpu::graph::record(dev.context(), dev.queue(), [&] {
        return dev.context()->check(
            "start a product", device::gpu::multiply_panels<quant::q8_0, device::f32_activations>(product, dev.queue().get()));
    });
    REQUIRE(recorded.has_value());
    const auto kernels = simt::runtime().kernels;
    workspace scratch;
    for (int step = 0; step < 3; ++step) {
        x[0] += 1.0f;
        REQUIRE(dev.queue().upload(values, x.data(), x.size() * sizeof(float)));
        REQUIRE(recorded->start(dev.queue()));
        REQUIRE(dev.queue().download(y.data(), values + 96, y.size() * sizeof(float)));
        REQUIRE(dev.queue().synchronize());
        results want(1);
        REQUIRE(dev.multiply(scratch, *image, {x.data(), 1, w.cols}, want.views));
        CHECK(y == want.first);
    }
    CHECK(simt::runtime().kernels == kernels + 9);
    const auto refused = device::gpu::graph::record(dev.context(), dev.queue(), [&]() -> frugal::status {
        FRUGAL_TRY_ASSIGN(auto memory, device::gpu::device_memory::allocate(dev.context(), 64));
        return {};
    });
    CHECK(refused.error().code == errc::device_failed);
    CHECK(names(refused.error(), "cudaErrorStreamCaptureUnsupported"));
    CHECK(dev.queue().synchronize());
}

TEST_CASE(
    "a decoded token's operators are recorded once and replayed: nothing is allocated, nothing waits, nothing goes to the host") {
    const machine guard;
    using q8_gpu = device::cuda<device::sm_90, device::cpu<frugal::isa::baseline>, device::q8_activations, quant::all>;
    auto dev = q8_gpu::open(0).value();
    constexpr std::size_t hidden = 64, width = 96;
    const auto gate_bytes = test::random_weights<quant::q4_0>(width, hidden, 1),
               up_bytes = test::random_weights<quant::q8_0>(width, hidden, 2);
    const auto down_bytes = test::random_weights<quant::q5_1>(hidden, width, 3);
    const auto view = [](quant::type_id type, const std::vector<std::byte>& bytes, std::size_t rows, std::size_t cols) {
        return quant::make_weight_view<quant::all>(type, bytes, rows, cols).value();
    };
    const std::vector<quant::weight_view> wide = {view(quant::q4_0::type, gate_bytes, width, hidden),
                                                  view(quant::q8_0::type, up_bytes, width, hidden)};
    const std::vector<quant::weight_view> narrow = {view(quant::q5_1::type, down_bytes, hidden, width)};
    const auto gate_up = dev.pack(wide).value(), down = dev.pack(narrow).value();
    const auto weights = test::random_floats(hidden, 4);

    // x | norm weights | normed | gate | up | result | scales | codes and sums as bytes | token
    auto room = device::gpu::device_memory::allocate(dev.context(), 8192).value();
    float* const x = room.as<float>();
    float *const norm = x + 64, *const normed = x + 128, *const gate = x + 192, *const up = x + 288, *const out = x + 384,
                 *const scales = x + 448;
    auto* const sums = reinterpret_cast<std::int16_t*>(x + 464);
    auto* const codes = reinterpret_cast<std::int8_t*>(x + 480);
    auto* const token = reinterpret_cast<std::int32_t*>(x + 512);
    REQUIRE(dev.queue().upload(norm, weights.data(), hidden * sizeof(float)));
    const cudaStream_t queue = dev.queue().get();
    const auto step = [&]() -> frugal::status {
        const auto check = [&](cudaError_t error) { return dev.context()->check("start a kernel", error); };
        const auto product = [&](const quant::panel_view& w, const float* from, float* to) {
            device::gpu::panel_product p;
            p.weights = w.data;
            p.rows = w.rows;
            p.panel_bytes = w.panel_bytes;
            p.x = {from, codes, sums, scales, 1, w.cols / 32};
            p.y = to;
            p.y_stride = w.rows;
            cudaError_t error = cudaSuccess;
            (void)quant::visit<quant::all>(w.type, [&]<class Format>(frugal::type_tag<Format>) {
                error = device::gpu::multiply_panels<Format, device::q8_activations>(p, queue);
            });
            return check(error);
        };
        const auto row = [](float* data, std::size_t n) { return matrix_view<float>(data, 1, n); };
        FRUGAL_TRY(check(ops::cuda::grouped_rms_norm<ops::norm_weight::plain>(row(x, hidden), norm, hidden, 1e-6f,
                                                                              row(normed, hidden), queue)));
        FRUGAL_TRY(check(device::gpu::quantize_activations<device::q8_activations>(normed, 1, 2, codes, sums, scales, queue)));
        FRUGAL_TRY(product(gate_up.parts()[0], normed, gate));
        FRUGAL_TRY(product(gate_up.parts()[1], normed, up));
        FRUGAL_TRY(check(ops::cuda::swiglu(row(gate, width), row(up, width), row(gate, width), queue)));
        FRUGAL_TRY(check(device::gpu::quantize_activations<device::q8_activations>(gate, 1, 3, codes, sums, scales, queue)));
        FRUGAL_TRY(product(down.parts()[0], gate, out));
        FRUGAL_TRY(check(ops::cuda::add(row(out, hidden), row(x, hidden), queue)));
        return check(ops::cuda::greedy(row(x, hidden), token, queue));
    };
    const auto input = test::random_floats(hidden, 5);
    const auto run = [&](auto&& once) {
        std::vector<float> all;
        REQUIRE(dev.queue().upload(x, input.data(), hidden * sizeof(float)));
        for (int i = 0; i < 3; ++i) {
            std::vector<float> now(hidden);
            std::int32_t chosen = -1;
            REQUIRE(once());
            REQUIRE(dev.queue().download(now.data(), x, hidden * sizeof(float)));
            REQUIRE(dev.queue().download(&chosen, token, sizeof(chosen)));
            REQUIRE(dev.queue().synchronize());
            CHECK(chosen == std::max_element(now.begin(), now.end()) - now.begin());
            all.insert(all.end(), now.begin(), now.end());
        }
        return all;
    };
    const auto direct = run(step);
    const auto before = simt::runtime();
    const auto recorded = device::gpu::graph::record(dev.context(), dev.queue(), step);
    REQUIRE(recorded.has_value());
    CHECK(simt::runtime().kernels == before.kernels);
    const auto replayed = run([&] { return recorded->start(dev.queue()); });
    CHECK(replayed == direct);
    CHECK(simt::runtime().allocation_calls == before.allocation_calls);
    CHECK(simt::runtime().synchronizations == before.synchronizations + 3);
    CHECK(simt::runtime().graph_launches == before.graph_launches + 3);
    CHECK(simt::runtime().kernels == before.kernels + 27);
}

namespace {

/// Rows of 64 features and what stands between them: on the host, or on a GPU.
struct block_numbers {
    static constexpr std::size_t rows = 3, cols = 64, taps = 4;
    static constexpr std::size_t at_weight = rows * cols, at_taps = at_weight + cols, at_history = at_taps + taps * cols,
                                 at_gate = at_history + (taps - 1) * cols, at_y = at_gate + rows * cols,
                                 count = at_y + rows * cols;
    float* all;

    [[nodiscard]] matrix_view<float> of(std::size_t at) const { return {all + at, rows, cols}; }
    [[nodiscard]] std::span<const float> weight() const { return {all + at_weight, cols}; }

    /// Written once for both.
    template <class Pass>
    [[nodiscard]] frugal::status forward(Pass& pass) const {
        const matrix_view<float> x = of(0), gate = of(at_gate), y = of(at_y), history(all + at_history, taps - 1, cols);
        const std::span<const float> conv(all + at_taps, taps * cols);
        FRUGAL_TRY(ops::causal_conv1d<ops::activation::silu>(pass, conv, x, taps, 1, history, y));
        FRUGAL_TRY(ops::grouped_l2_norm(pass, y, 16, 1e-6f, y));
        FRUGAL_TRY(ops::grouped_rms_norm<ops::norm_weight::zero_centred>(pass, weight(), y, 32, 1e-6f, y));
        FRUGAL_TRY(ops::gate_heads(pass, gate, 2, y));
        FRUGAL_TRY(ops::swiglu(pass, gate, y, y));
        FRUGAL_TRY(ops::rms_norm<ops::norm_weight::plain>(pass, weight(), y, 1e-6f, y));
        return ops::add(pass, x, y);
    }
};

}  // namespace

TEST_CASE("a block written once runs on the host and on a GPU") {
    const machine clean;
    auto numbers = test::random_floats(block_numbers::count, 11);
    gpu dev = gpu::open(0).value();
    device::gpu::room memory(dev.context(), dev.queue());
    const block_numbers there{memory.copy(std::span<const float>(numbers)).value()};
    device::gpu::pass<gpu> pass(dev.context(), dev.queue());
    REQUIRE(pass.settle(memory));
    REQUIRE(there.forward(pass));
    std::vector<float> got(numbers.size());
    REQUIRE(dev.queue().download(got.data(), there.all, got.size() * sizeof(float)));
    REQUIRE(dev.queue().synchronize());
    device::cpu<frugal::isa::baseline> host;
    REQUIRE(block_numbers{numbers.data()}.forward(host));
    for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(std::fabs(got[i] - numbers[i]) <= 1e-5f);
}

TEST_CASE("scratch of a pass: as much as was measured, where it was before, with zeros behind the rows of an input") {
    const machine clean;
    gpu dev = gpu::open(0).value();
    device::gpu::room memory(dev.context(), dev.queue());
    device::gpu::pass<gpu> pass(dev.context(), dev.queue());
    std::vector<float*> places;
    const auto step = [&](std::size_t rows) -> frugal::status {
        places.clear();
        {
            const device::gpu::pass<gpu>::scope scope(pass);
            FRUGAL_TRY_ASSIGN(const auto wide, pass.matrix(rows, 100));
            FRUGAL_TRY_ASSIGN(const auto bytes, pass.array<std::uint8_t>(rows));
            FRUGAL_TRY(pass.fill(wide.data(), 0xFF, rows * 100 * sizeof(float)));
            FRUGAL_TRY(pass.fill(bytes.data(), 0xFF, rows));
            places.push_back(wide.data());
        }
        const device::gpu::pass<gpu>::scope scope(pass);
        FRUGAL_TRY_ASSIGN(const auto input, pass.input_matrix(rows, 40));
        FRUGAL_TRY_ASSIGN(const auto behind, pass.matrix(rows, 1));
        CHECK(input.stride() == 64);
        CHECK(behind.data() >= input.data() + rows * 64);
        places.push_back(input.data());
        places.push_back(behind.data());
        return {};
    };
    const auto before = simt::runtime();
    REQUIRE(step(3));
    REQUIRE(step(1));
    CHECK(simt::runtime().allocation_calls == before.allocation_calls);
    REQUIRE(pass.settle(memory));
    const auto settled = simt::runtime();
    REQUIRE(step(3));
    const auto first = places;
    REQUIRE(step(3));
    CHECK(places == first);
    CHECK(first[0] == first[1]);  // given back, and taken again
    std::vector<float> padding(64);
    REQUIRE(dev.queue().download(padding.data(), first[1] + 64, 64 * sizeof(float)));
    REQUIRE(dev.queue().synchronize());
    for (std::size_t c = 40; c < 64; ++c) CHECK(padding[c] == 0.0f);
    const auto more = step(4);
    REQUIRE(!more);
    CHECK(more.error().code == errc::out_of_memory);
    REQUIRE(step(3));
    CHECK(places == first);
    CHECK(simt::runtime().allocation_calls == settled.allocation_calls);
}

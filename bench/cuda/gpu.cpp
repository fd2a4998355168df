#include "gpu.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "opened.hpp"
#if FRUGAL_BENCH_CUBLAS
#include "frugal/device/cuda/cublas.hpp"
#endif

namespace bench {

namespace gpu = frugal::device::gpu;

double relative(const std::vector<float>& got, const std::vector<double>& want) {
    double difference = 0, square = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = static_cast<double>(got[i]) - want[i];
        difference += d * d;
        square += want[i] * want[i];
    }
    return std::sqrt(difference / square);
}

report::report() {
    must(cudaGetDeviceProperties(&device, 0), "find a device");
    must(cudaSetDevice(0), "use the device");
    limits_.device =
        std::string(device.name) + ", compute capability " + std::to_string(device.major) + "." + std::to_string(device.minor);
    const auto on = std::make_shared<gpu::context>();
    on->major = device.major;
    on->minor = device.minor;
    on->multiprocessors = device.multiProcessorCount;
    auto made = gpu::stream::create(on);
    if (!made) must(frugal::status(std::move(made).error()));
    host = std::make_shared<opened>(opened{on, std::move(*made)});
    queue = host->queue.get();
    measure_limits();
}

void report::measure_limits() {
    const std::size_t bytes = std::size_t{1} << 30;
    {
        const array<std::byte> from(bytes);
        const array<float> out(1);
        must(cudaMemset(from.data(), 0, bytes), "clear");
        must(cudaDeviceSynchronize(), "finish its work");
        const double time =
            microseconds([&](int) { start_reading(from.data(), bytes, out.data(), device.multiProcessorCount, queue); });
        must(cudaGetLastError(), "read");
        limits_.bytes_a_second = static_cast<double>(bytes) / time * 1e6;
    }
    std::printf("%s, %d multiprocessors; reads %.0f GB/s\n", limits_.device.c_str(), device.multiProcessorCount,
                limits_.bytes_a_second / 1e9);
    std::printf("figure machine.read_gigabytes_a_second %.1f\n", limits_.bytes_a_second / 1e9);
#if FRUGAL_BENCH_CUBLAS
    constexpr std::size_t n = 8192;
    std::vector<frugal::bfloat16> numbers(n * n);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = frugal::to_bfloat16(static_cast<float>(i % 251) / 251 - 0.5f);
    const array<frugal::bfloat16> w(numbers), x(numbers);
    const array<float> y(n * n);
    gpu::cublas_products product;
    const double time =
        microseconds([&](int) { must(product.multiply(host->on, host->queue, w.data(), n, n, x.data(), n, y.data(), n)); });
    limits_.operations_a_second = 2.0 * n * n * n / time * 1e6;
    std::printf("figure machine.cublas_bf16_teraflops %.1f\n", limits_.operations_a_second / 1e12);
#else
    std::printf("no cuBLAS: nothing is compared with it\n");
#endif
}

double report::microseconds(const std::function<void(int)>& f) const {
    cudaEvent_t begin = nullptr, end = nullptr;
    must(cudaEventCreateWithFlags(&begin, cudaEventDefault), "create an event");
    must(cudaEventCreateWithFlags(&end, cudaEventDefault), "create an event");
    int at = 0;
    const auto round = [&](int calls) {
        must(cudaEventRecord(begin, queue), "record an event");
        for (int i = 0; i < calls; ++i) f(at++);
        must(cudaEventRecord(end, queue), "record an event");
        must(cudaEventSynchronize(end), "finish its work");
        float milliseconds = 0;
        must(cudaEventElapsedTime(&milliseconds, begin, end), "read a time");
        return static_cast<double>(milliseconds) * 1000 / calls;
    };
    (void)round(3);
    const int calls = std::clamp(static_cast<int>(1000 / std::max(round(3), 0.5)), 1, 400);
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) times.push_back(round(calls));
    std::sort(times.begin(), times.end());
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    return times[times.size() / 2];
}

std::size_t report::copies(double bytes) const {
    const double wanted = 4.0 * static_cast<double>(device.l2CacheSize) / std::max(bytes, 1.0);
    return std::clamp<std::size_t>(static_cast<std::size_t>(wanted) + 1, 1, 4096);
}

void report::add(const std::string& name, bool right, const work& what, const std::function<void(int)>& f) {
    all_right_ = all_right_ && right;
    if (!right) {
        std::printf("WRONG %s: not timed\n", name.c_str());
        return;
    }
    const double time = microseconds(f);
    must(cudaGetLastError(), name.c_str());
    rows_.push_back({name, time, what});
    std::string dotted = name;
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    std::printf("figure %s.microseconds %.2f\n", dotted.c_str(), time);
    const row& made = rows_.back();
    if (what.bytes > 0) std::printf("figure %s.bandwidth_fraction %.3f\n", dotted.c_str(), bandwidth_fraction(made, limits_));
    if (what.operations > 0)
        std::printf("figure %s.teraoperations_a_second %.2f\n", dotted.c_str(), what.operations / time / 1e6);
    if (has_cublas_fraction(made, limits_))
        std::printf("figure %s.of_cublas_bf16 %.3f\n", dotted.c_str(), cublas_fraction(made, limits_));
    (void)std::fflush(stdout);
}

double report::microseconds_of(const std::string& name) const {
    for (const row& each : rows_)
        if (each.name == name) return each.microseconds;
    return 0;
}

}  // namespace bench

int main(int argc, char** argv) {
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
        std::fprintf(stderr, "no NVIDIA GPU that this process may use: %s\n",
                     cudaGetErrorName(error != cudaSuccess ? error : cudaErrorNoDevice));
        return 2;
    }
    bench::report report;
    bench::products(report);
    bench::gated_delta_rule(report);
    bench::attention(report);
    bench::decode_steps(report);
    if (argc > 1 && !report.write(argv[1])) {
        std::fprintf(stderr, "cannot write %s\n", argv[1]);
        return 1;
    }
    return report.all_right() ? 0 : 1;
}

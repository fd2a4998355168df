#pragma once
/// What the benchmarks on a GPU share: its limits, times by events, results as JSON and as lines `figure NAME VALUE`.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "json.hpp"

namespace bench {

inline void must(cudaError_t error, const char* doing) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "CUDA cannot %s: %s\n", doing, cudaGetErrorName(error));
    std::exit(1);
}

/// Memory of the device.
template <class T>
class array {
public:
    explicit array(std::size_t size) : size_(size) { must(cudaMalloc(&data_, size * sizeof(T) + 16), "allocate"); }
    explicit array(const std::vector<T>& from) : array(from.size()) {
        must(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
    }
    array(array&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
    array(const array&) = delete;
    array& operator=(const array&) = delete;
    ~array() { cudaFree(data_); }
    [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] std::vector<T> to_host() const {
        std::vector<T> out(size_);
        must(cudaDeviceSynchronize(), "finish its work");
        must(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy from the device");
        return out;
    }

private:
    void* data_ = nullptr;
    std::size_t size_;
};

inline std::vector<float> normals(std::size_t n, unsigned seed, float sigma = 1) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, sigma);
    std::vector<float> out(n);
    for (float& x : out) x = normal(generator);
    return out;
}

/// Root of the mean square difference, relative to that of the wanted.
double relative(const std::vector<float>& got, const std::vector<double>& want);

struct opened;  ///< the device and the stream as host code of the library wants them: opened.hpp, not for nvcc

class report {
public:
    std::shared_ptr<const opened> host;
    cudaStream_t queue = nullptr;
    cudaDeviceProp device{};

    /// Opens the first device and measures how fast it reads and, by cuBLAS, multiplies. Without a device it ends the program.
    report();
    /// How many copies of `bytes` exceed the cache four times.
    [[nodiscard]] std::size_t copies(double bytes) const;
    /// One measured thing: f(i) starts it, with i counting up. A wrong result is not timed.
    void add(const std::string& name, bool right, const work& what, const std::function<void(int)>& f);
    /// The median time of a thing that was measured, or 0.
    [[nodiscard]] double microseconds_of(const std::string& name) const;
    [[nodiscard]] bool all_right() const { return all_right_; }
    /// Whether it could be written.
    [[nodiscard]] bool write(const char* path) const { return write_json(path, limits_, rows_); }

private:
    /// Median microseconds of f(i) over rounds of enough calls to be measurable.
    [[nodiscard]] double microseconds(const std::function<void(int)>& f) const;
    void measure_limits();

    limits limits_;
    std::vector<row> rows_;
    bool all_right_ = true;
};

/// The groups.
void products(report& to);
void gated_delta_rule(report& to);
void attention(report& to);
void decode_steps(report& to);

/// Starts a kernel that does nothing but read.
void start_reading(const void* from, std::size_t bytes, float* out, int multiprocessors, cudaStream_t queue);

}  // namespace bench

#pragma once
/// What tests of kernels use of the emulator, on a GPU: the same tests, compiled with this folder before the other, run
/// natively. There is one order of threads, the device's own; faults, checks of accesses and mutations are the emulator's
/// alone.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>

namespace simt {

/// Never thrown here: a kernel's fault is an error of the runtime.
struct kernel_fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct where {
    const char* file = "";
    int line = 0;
};
struct barrier_site {
    where at;
};
struct settings {
    int remove_barrier = -1;
};
struct launch_report {
    std::vector<barrier_site> barriers;
};
inline settings& config() {
    static settings s;
    return s;
}
inline const launch_report& last_launch() {
    static const launch_report none;
    return none;
}
inline constexpr bool barriers_can_be_removed = false;
inline bool access_checks_active() { return false; }

inline void must(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorName(error));
}

/// Twice, so that what a first run leaves behind shows.
template <class Body>
void for_each_schedule(Body&& body, int = 2) {
    body();
    body();
}

/// Whether three runs give the same bytes.
template <class Body>
bool same_under_all_schedules(Body&& body, int = 2) {
    const auto expected = body();
    for (int i = 0; i < 2; ++i) {
        const auto got = body();
        if (got.size() != expected.size() ||
            (!got.empty() && std::memcmp(got.data(), expected.data(), got.size() * sizeof(got[0])) != 0))
            return false;
    }
    return true;
}

/// Device memory: starts as NaN bytes.
template <class T>
class device_array {
public:
    explicit device_array(std::size_t size) : size_(size) {
        must(cudaMalloc(&data_, bytes() + 1));
        must(cudaMemset(data_, 0xFF, bytes() + 1));
    }
    explicit device_array(const std::vector<T>& from) : device_array(from.size()) {
        if (size_ != 0) must(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice));
    }
    device_array(const device_array&) = delete;
    device_array& operator=(const device_array&) = delete;
    ~device_array() { cudaFree(data_); }
    [[nodiscard]] T* data() const { return static_cast<T*>(data_); }
    [[nodiscard]] std::vector<T> to_host() const {
        std::vector<std::remove_const_t<T>> out(size_);
        must(cudaDeviceSynchronize());
        if (size_ != 0) must(cudaMemcpy(static_cast<void*>(out.data()), data_, bytes(), cudaMemcpyDeviceToHost));
        return out;
    }

private:
    [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }
    void* data_ = nullptr;
    std::size_t size_;
};

}  // namespace simt

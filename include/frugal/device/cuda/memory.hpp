#pragma once
/// What the host owns of a device: memory, pinned host memory, a stream, graphs. Move-only; nothing is freed on a device that
/// is lost.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/errors.hpp"
#include "frugal/device/cuda/runtime.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device::gpu {

/// One opening of a device: shared by all that lives on it.
struct FRUGAL_FLAGGED context {
    int index = 0;
    std::uint64_t generation = 0;
    int major = 0, minor = 0;  ///< compute capability
    int multiprocessors = 0;
    bool lost = false;

    /// As gpu::check; notes that the device is lost.
    [[nodiscard]] status check(std::string_view doing, cudaError_t code) {
        lost = lost || ends_the_context(code);
        return gpu::check(doing, code);
    }
};
using context_ref = std::shared_ptr<context>;

namespace detail {
struct FRUGAL_FLAGGED free_device {
    context_ref on;
    void operator()(void* memory) const noexcept {
        if (on != nullptr && !on->lost) (void)cudaFree(memory);
    }
};
struct FRUGAL_FLAGGED free_pinned {
    context_ref on;
    void operator()(void* memory) const noexcept {
        if (on != nullptr && !on->lost) (void)cudaFreeHost(memory);
    }
};
struct FRUGAL_FLAGGED end_stream {
    context_ref on;
    void operator()(cudaStream_t stream) const noexcept {
        if (on != nullptr && !on->lost) (void)cudaStreamDestroy(stream);
    }
};
struct FRUGAL_FLAGGED end_graph {
    context_ref on;
    void operator()(cudaGraphExec_t graph) const noexcept {
        if (on != nullptr && !on->lost) (void)cudaGraphExecDestroy(graph);
    }
};
}  // namespace detail

/// Bytes in the memory of a device, at least 256-byte aligned, contents unspecified.
class FRUGAL_FLAGGED device_memory {
public:
    device_memory() noexcept = default;
    /// Errors: out_of_memory, device_failed, device_lost.
    [[nodiscard]] static result<device_memory> allocate(const context_ref& on, std::size_t bytes) {
        device_memory out;
        if (bytes == 0) return out;
        void* memory = nullptr;
        FRUGAL_TRY(on->check("allocate device memory", cudaMalloc(&memory, bytes)));
        out.memory_ = owner(memory, {on});
        out.bytes_ = bytes;
        return out;
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }
    template <class T>
    [[nodiscard]] T* as() const noexcept {
        return static_cast<T*>(memory_.get());
    }

private:
    using owner = std::unique_ptr<void, detail::free_device>;
    owner memory_{nullptr, {}};
    std::size_t bytes_ = 0;
};

/// Bytes of the host that the device copies to and from by itself.
class FRUGAL_FLAGGED pinned_memory {
public:
    pinned_memory() noexcept = default;
    /// Errors: out_of_memory, device_failed, device_lost.
    [[nodiscard]] static result<pinned_memory> allocate(const context_ref& on, std::size_t bytes) {
        pinned_memory out;
        if (bytes == 0) return out;
        void* memory = nullptr;
        FRUGAL_TRY(on->check("allocate pinned host memory", cudaMallocHost(&memory, bytes)));
        out.memory_ = owner(memory, {on});
        out.bytes_ = bytes;
        return out;
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    template <class T>
    [[nodiscard]] T* as() const noexcept {
        return static_cast<T*>(memory_.get());
    }

private:
    using owner = std::unique_ptr<void, detail::free_pinned>;
    owner memory_{nullptr, {}};
    std::size_t bytes_ = 0;
};

/// Work that a device does in order.
class FRUGAL_FLAGGED stream {
public:
    [[nodiscard]] static result<stream> create(const context_ref& on) {
        stream out;
        cudaStream_t made = nullptr;
        FRUGAL_TRY(on->check("create a stream", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking)));
        out.on_ = on;
        out.stream_ = owner(made, {on});
        return out;
    }
    [[nodiscard]] cudaStream_t get() const noexcept { return stream_.get(); }
    [[nodiscard]] status synchronize() const { return on_->check("finish its work", cudaStreamSynchronize(get())); }
    [[nodiscard]] status upload(void* to, const void* from, std::size_t bytes) const {
        return on_->check("copy to the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, get()));
    }
    [[nodiscard]] status download(void* to, const void* from, std::size_t bytes) const {
        return on_->check("copy from the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, get()));
    }

private:
    using owner = std::unique_ptr<CUstream_st, detail::end_stream>;
    context_ref on_;
    owner stream_{nullptr, {}};
};

/// Work recorded once and started as a whole: what a decode step is replayed from.
class FRUGAL_FLAGGED graph {
public:
    graph() noexcept = default;
    /// Records what `work()` queues on the stream, without doing it. `work` returns status and must neither allocate nor wait.
    /// Errors: that of `work`; device_failed (something that cannot be recorded), device_lost. The stream stays usable.
    template <class Work>
    [[nodiscard]] static result<graph> record(const context_ref& on, const stream& queue, Work&& work) {
        FRUGAL_TRY(on->check("record a graph", cudaStreamBeginCapture(queue.get(), cudaStreamCaptureModeThreadLocal)));
        status worked = work();
        cudaGraph_t recorded = nullptr;
        status ended = on->check("record a graph", cudaStreamEndCapture(queue.get(), &recorded));
        graph out;
        status made;
        if (worked && ended) {
            cudaGraphExec_t ready = nullptr;
            made = on->check("prepare a graph", cudaGraphInstantiate(&ready, recorded, 0));
            if (made) out.graph_ = owner(ready, {on});
            out.on_ = on;
        }
        if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
        FRUGAL_TRY(std::move(worked));
        FRUGAL_TRY(std::move(ended));
        FRUGAL_TRY(std::move(made));
        return out;
    }
    [[nodiscard]] status start(const stream& queue) const {
        return on_->check("start a graph", cudaGraphLaunch(graph_.get(), queue.get()));
    }

private:
    using owner = std::unique_ptr<CUgraphExec_st, detail::end_graph>;
    context_ref on_;
    owner graph_{nullptr, {}};
};

}  // namespace device::gpu

FRUGAL_NAMESPACE_END

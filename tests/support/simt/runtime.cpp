#include "simt/runtime.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "simt/emulator.hpp"

using operation = std::function<void()>;

// The toolkit declares these and leaves them open.
struct CUstream_st {
    std::deque<operation> queue;
    std::uint64_t queued = 0, done = 0;
    bool capturing = false;
    std::vector<operation> captured;
};
struct CUevent_st {
    CUstream_st* stream = nullptr;
    std::uint64_t after = 0;  // operations of the stream that come before
    bool timed = false;
};
struct CUgraph_st {
    std::vector<operation> operations;
};
struct CUgraphExec_st {
    std::vector<operation> operations;
};

namespace simt {
namespace {

struct planned_failure {
    std::string function;
    cudaError_t error;
    int skip;
    bool sticky;
};

struct state {
    device_model model;
    runtime_report report;
    std::vector<planned_failure> failures;
    cudaError_t sticky = cudaSuccess, last = cudaSuccess;
    std::set<CUstream_st*> streams;
    std::map<void*, std::size_t> memory;
    std::set<void*> pinned;
    std::set<CUgraphExec_st*> ready_graphs;
    std::exception_ptr fault;  // of a kernel that ran where nobody could be told

    [[nodiscard]] bool capturing() const {
        for (const CUstream_st* stream : streams)
            if (stream->capturing) return true;
        return false;
    }
};
state& self() {
    static thread_local state s;
    return s;
}

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) self().last = error;
    return error;
}

/// What a call of `function` must return before it does anything.
cudaError_t enter(std::string_view function) {
    state& s = self();
    if (s.model.driver_version == 0 || s.model.driver_version < CUDART_VERSION / 1000 * 1000)
        return remember(cudaErrorInsufficientDriver);
    if (s.model.devices == 0) return remember(cudaErrorNoDevice);
    if (s.sticky != cudaSuccess) return remember(s.sticky);
    for (auto it = s.failures.begin(); it != s.failures.end(); ++it) {
        if (it->function != function || it->skip-- > 0) continue;
        const planned_failure found = *it;
        s.failures.erase(it);
        if (found.sticky) s.sticky = found.error;
        return remember(found.error);
    }
    return cudaSuccess;
}

void run_one(CUstream_st& stream) {
    operation next = std::move(stream.queue.front());
    stream.queue.pop_front();
    ++stream.done;
    next();
}
void drain(CUstream_st& stream, std::uint64_t until) {
    while (stream.done < until && !stream.queue.empty()) run_one(stream);
}
void drain_all() {
    for (CUstream_st* stream : self().streams) drain(*stream, stream->queued);
}
/// Where an exception could not pass.
void drain_quietly() noexcept {
    try {
        drain_all();
    } catch (...) {
        self().fault = std::current_exception();
    }
}
void throw_kept_fault() {
    if (self().fault != nullptr) std::rethrow_exception(std::exchange(self().fault, nullptr));
}

cudaError_t enqueue(CUstream_st* stream, operation what) {
    if (stream == nullptr) {
        what();
        return cudaSuccess;
    }
    if (stream->capturing) {
        stream->captured.push_back(std::move(what));
        return cudaSuccess;
    }
    stream->queue.push_back(std::move(what));
    ++stream->queued;
    return cudaSuccess;
}

/// Whether the bytes are within one allocation.
bool on_device(const void* at, std::size_t bytes) {
    const auto& memory = self().memory;
    auto it = memory.upper_bound(const_cast<void*>(at));
    if (it == memory.begin()) return false;
    --it;
    return static_cast<const char*>(at) + bytes <= static_cast<const char*>(it->first) + it->second;
}

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, CUstream_st* stream) {
    if (bytes == 0) return cudaSuccess;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (on_device(to, bytes) != to_device || on_device(from, bytes) != from_device) return remember(cudaErrorInvalidValue);
    return enqueue(stream, [=] {
        std::memcpy(to, from, bytes);
        if (to_device) mark_initialised(to, bytes);
        if (kind == cudaMemcpyHostToDevice) self().report.bytes_to_device += bytes;
        if (kind == cudaMemcpyDeviceToHost) self().report.bytes_to_host += bytes;
    });
}

}  // namespace

device_model& device() { return self().model; }
const runtime_report& runtime() { return self().report; }
void fail_call(std::string_view function, cudaError_t error, int skip, bool sticky) {
    self().failures.push_back({std::string(function), error, skip, sticky});
}
void reset_runtime() {
    state& s = self();
    s.model = {};
    s.failures.clear();
    s.sticky = s.last = cudaSuccess;
    s.fault = nullptr;
    const runtime_report before = s.report;
    s.report = {};
    s.report.allocations = before.allocations;
    s.report.allocated_bytes = before.allocated_bytes;
    s.report.pinned = before.pinned;
    s.report.streams = before.streams;
    s.report.events = before.events;
    s.report.graphs = before.graphs;
}
cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> kernel) {
    if (stream != nullptr)  // the null stream serves tests of kernels, which plan no failures and count nothing
        if (const cudaError_t error = enter("launch"); error != cudaSuccess) return error;
    return enqueue(stream, [kernel = std::move(kernel)] {
        ++self().report.kernels;
        kernel();
    });
}

}  // namespace simt

#define SIMT_ENTER() \
    if (const cudaError_t error_ = simt::enter(__func__); error_ != cudaSuccess) return error_

extern "C" {

// ---- errors
cudaError_t cudaGetLastError() { return std::exchange(simt::self().last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return simt::self().last; }
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
        case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
        case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
        case cudaErrorLaunchOutOfResources: return "cudaErrorLaunchOutOfResources";
        case cudaErrorLaunchTimeout: return "cudaErrorLaunchTimeout";
        case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
        case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
        case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        default: return "cudaErrorUnknown";
    }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// ---- devices
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    SIMT_ENTER();
    *count = simt::self().model.devices;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = simt::self().model.driver_version;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int index) {
    SIMT_ENTER();
    return index < 0 || index >= simt::self().model.devices ? simt::remember(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
    SIMT_ENTER();
    const simt::device_model& model = simt::self().model;
    if (index < 0 || index >= model.devices) return simt::remember(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = model.major; return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor: *value = model.minor; return cudaSuccess;
        case cudaDevAttrMultiProcessorCount: *value = model.multiprocessors; return cudaSuccess;
        default: return simt::remember(cudaErrorInvalidValue);
    }
}
cudaError_t cudaDeviceSynchronize() {
    SIMT_ENTER();
    if (simt::self().capturing()) return simt::remember(cudaErrorStreamCaptureUnsupported);
    ++simt::self().report.synchronizations;
    simt::drain_all();
    simt::throw_kept_fault();
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() {  // whatever was alive is gone
    simt::state& s = simt::self();
    s.sticky = s.last = cudaSuccess;
    s.fault = nullptr;
    for (const auto& [memory, bytes] : s.memory) simt::release(memory);
    for (void* memory : s.pinned) std::free(memory);
    for (CUstream_st* stream : s.streams) delete stream;
    for (CUgraphExec_st* graph : s.ready_graphs) delete graph;
    s.report.graphs -= s.ready_graphs.size();
    s.ready_graphs.clear();
    s.memory.clear();
    s.pinned.clear();
    s.streams.clear();
    s.report.allocations = s.report.allocated_bytes = s.report.pinned = s.report.streams = 0;
    return cudaSuccess;
}

// ---- memory
cudaError_t cudaMalloc(void** out, std::size_t bytes) {
    SIMT_ENTER();
    simt::state& s = simt::self();
    if (s.capturing()) return simt::remember(cudaErrorStreamCaptureUnsupported);
    ++s.report.allocation_calls;
    if (bytes > s.model.memory - std::min(s.model.memory, s.report.allocated_bytes))
        return simt::remember(cudaErrorMemoryAllocation);
    *out = simt::allocate(bytes);
    s.memory.emplace(*out, bytes);
    ++s.report.allocations;
    s.report.allocated_bytes += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
    simt::state& s = simt::self();
    if (memory == nullptr) return cudaSuccess;
    const auto it = s.memory.find(memory);
    if (it == s.memory.end()) return simt::remember(cudaErrorInvalidValue);
    simt::drain_quietly();
    --s.report.allocations;
    s.report.allocated_bytes -= it->second;
    s.memory.erase(it);
    simt::release(memory);
    return s.sticky;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    SIMT_ENTER();
    const simt::state& s = simt::self();
    *total = s.model.memory;
    *free = s.model.memory - std::min(s.model.memory, s.report.allocated_bytes);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void** out, std::size_t bytes) {
    SIMT_ENTER();
    ++simt::self().report.allocation_calls;
    *out = std::malloc(bytes);
    if (*out == nullptr) return simt::remember(cudaErrorMemoryAllocation);
    std::memset(*out, 0xFF, bytes);
    simt::self().pinned.insert(*out);
    ++simt::self().report.pinned;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
    if (memory == nullptr) return cudaSuccess;
    if (simt::self().pinned.erase(memory) == 0) return simt::remember(cudaErrorInvalidValue);
    simt::drain_quietly();
    --simt::self().report.pinned;
    std::free(memory);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    SIMT_ENTER();
    return simt::copy(to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    SIMT_ENTER();
    if (simt::self().capturing()) return simt::remember(cudaErrorStreamCaptureUnsupported);
    simt::drain_all();
    simt::throw_kept_fault();
    return simt::copy(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
    SIMT_ENTER();
    if (bytes == 0) return cudaSuccess;
    if (!simt::on_device(to, bytes)) return simt::remember(cudaErrorInvalidValue);
    return simt::enqueue(stream, [=] {
        std::memset(to, value, bytes);
        simt::mark_initialised(to, bytes);
    });
}

// ---- streams
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
    SIMT_ENTER();
    *out = new CUstream_st;
    simt::self().streams.insert(*out);
    ++simt::self().report.streams;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (simt::self().streams.erase(stream) == 0) return simt::remember(cudaErrorInvalidValue);
    try {
        simt::drain(*stream, stream->queued);
    } catch (...) {
        simt::self().fault = std::current_exception();
    }
    --simt::self().report.streams;
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    SIMT_ENTER();
    if (stream == nullptr) return cudaSuccess;
    if (stream->capturing) return simt::remember(cudaErrorStreamCaptureUnsupported);
    ++simt::self().report.synchronizations;
    simt::drain(*stream, stream->queued);
    simt::throw_kept_fault();
    return cudaSuccess;
}

// ---- events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
    SIMT_ENTER();
    *out = new CUevent_st;
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    ++simt::self().report.events;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    --simt::self().report.events;
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    SIMT_ENTER();
    event->stream = stream;
    event->after = stream != nullptr ? stream->queued : 0;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    SIMT_ENTER();
    if (event->stream == nullptr) return cudaSuccess;
    ++simt::self().report.synchronizations;
    simt::drain(*event->stream, event->after);
    simt::throw_kept_fault();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    SIMT_ENTER();
    if (event->stream == nullptr || event->stream == stream) return cudaSuccess;
    return simt::enqueue(stream, [from = event->stream, after = event->after] {
        if (simt::self().streams.count(from) != 0) simt::drain(*from, after);
    });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    SIMT_ENTER();
    if (!begin->timed || !end->timed) return simt::remember(cudaErrorInvalidResourceHandle);
    *milliseconds = 1.0f;
    return cudaSuccess;
}

// ---- graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    SIMT_ENTER();
    if (stream == nullptr || stream->capturing) return simt::remember(cudaErrorStreamCaptureUnsupported);
    stream->capturing = true;
    stream->captured.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
    *out = nullptr;
    if (!stream->capturing) return simt::remember(cudaErrorIllegalState);
    stream->capturing = false;  // whatever happened: the stream is usable again
    SIMT_ENTER();
    *out = new CUgraph_st{std::move(stream->captured)};
    ++simt::self().report.recordings;
    ++simt::self().report.graphs;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
    SIMT_ENTER();
    *out = new CUgraphExec_st{graph->operations};
    simt::self().ready_graphs.insert(*out);
    ++simt::self().report.graphs;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    SIMT_ENTER();
    ++simt::self().report.graph_launches;
    for (const operation& each : graph->operations) simt::enqueue(stream, each);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    --simt::self().report.graphs;
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    if (simt::self().ready_graphs.erase(graph) == 0) return simt::remember(cudaErrorInvalidValue);
    simt::drain_quietly();
    --simt::self().report.graphs;
    delete graph;
    return cudaSuccess;
}
}

// Stands between host code and the CUDA runtime; CMakeLists.txt of tests/cuda has the list of what the linker sends here.
#include "simt/runtime.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

namespace simt {
namespace {

struct failure {
    std::string function;
    cudaError_t error;
    int skip;
    bool sticky;
};
/// What a recorded graph does when it starts.
struct recorded {
    std::uint64_t kernels = 0, up = 0, down = 0;
};

struct state {
    device_model model;
    runtime_report report;
    std::vector<failure> failures;
    cudaError_t sticky = cudaSuccess, launch = cudaSuccess;  ///< launch: of the newest start of a kernel
    bool capturing = false;
    recorded recording;
    std::map<cudaGraph_t, recorded> graphs;
    std::map<cudaGraphExec_t, recorded> ready;
    std::map<void*, std::size_t> memory;
};
state& self() {
    static state out;
    return out;
}

/// What a call of the function is to return at once, if not cudaSuccess.
cudaError_t enter(std::string_view function) {
    state& s = self();
    if (s.sticky != cudaSuccess) return s.sticky;
    for (auto it = s.failures.begin(); it != s.failures.end(); ++it) {
        if (it->function != function || it->skip-- > 0) continue;
        const cudaError_t error = it->error;
        if (it->sticky) s.sticky = error;
        s.failures.erase(it);
        return error;
    }
    return cudaSuccess;
}
void add(const recorded& done) {
    runtime_report& to = self().report;
    to.kernels += done.kernels;
    to.bytes_to_device += done.up;
    to.bytes_to_host += done.down;
}
/// Done now, or by the graph that is being recorded.
void note(const recorded& done) {
    state& s = self();
    if (!s.capturing) return add(done);
    s.recording.kernels += done.kernels;
    s.recording.up += done.up;
    s.recording.down += done.down;
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
    s.sticky = s.launch = cudaSuccess;
    const runtime_report before = std::exchange(s.report, {});
    s.report.allocations = before.allocations;
    s.report.allocated_bytes = before.allocated_bytes;
    s.report.pinned = before.pinned;
    s.report.streams = before.streams;
    s.report.graphs = before.graphs;
}

}  // namespace simt

using simt::self;

#define SIMT_ENTER(function) \
    if (const cudaError_t error_ = simt::enter(function); error_ != cudaSuccess) return error_
/// Passes on an error of the runtime itself.
#define SIMT_REAL(...) \
    if (const cudaError_t error_ = (__VA_ARGS__); error_ != cudaSuccess) return error_
/// Declares the runtime's own function and defines the one that is called instead.
#define SIMT_WRAP(function, ...)                \
    cudaError_t __real_##function(__VA_ARGS__); \
    cudaError_t __wrap_##function(__VA_ARGS__); \
    cudaError_t __wrap_##function(__VA_ARGS__)

extern "C" {

SIMT_WRAP(cudaDeviceReset) {
    simt::state& s = self();
    SIMT_REAL(__real_cudaDeviceReset());
    s.sticky = s.launch = cudaSuccess;
    s.memory.clear();
    s.ready.clear();
    s.report.allocations = s.report.allocated_bytes = s.report.pinned = s.report.streams = s.report.graphs = 0;
    return cudaSuccess;
}

SIMT_WRAP(cudaMalloc, void** out, std::size_t bytes) {
    simt::state& s = self();
    SIMT_ENTER("cudaMalloc");
    ++s.report.allocation_calls;
    if (s.report.allocated_bytes > s.model.memory || bytes > s.model.memory - s.report.allocated_bytes)
        return cudaErrorMemoryAllocation;
    SIMT_REAL(__real_cudaMalloc(out, bytes));
    s.memory[*out] = bytes;
    ++s.report.allocations;
    s.report.allocated_bytes += bytes;
    return cudaSuccess;
}
SIMT_WRAP(cudaFree, void* memory) {
    simt::state& s = self();
    if (const auto it = s.memory.find(memory); it != s.memory.end()) {
        --s.report.allocations;
        s.report.allocated_bytes -= it->second;
        s.memory.erase(it);
    }
    return __real_cudaFree(memory);
}
SIMT_WRAP(cudaMallocHost, void** out, std::size_t bytes) {
    SIMT_ENTER("cudaMallocHost");
    ++self().report.allocation_calls;
    SIMT_REAL(__real_cudaMallocHost(out, bytes));
    ++self().report.pinned;
    return cudaSuccess;
}
SIMT_WRAP(cudaFreeHost, void* memory) {
    if (memory != nullptr) --self().report.pinned;
    return __real_cudaFreeHost(memory);
}
SIMT_WRAP(cudaMemcpyAsync, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    SIMT_ENTER("cudaMemcpyAsync");
    SIMT_REAL(__real_cudaMemcpyAsync(to, from, bytes, kind, stream));
    simt::note({0, kind == cudaMemcpyHostToDevice ? bytes : 0, kind == cudaMemcpyDeviceToHost ? bytes : 0});
    return cudaSuccess;
}

SIMT_WRAP(cudaStreamCreateWithFlags, cudaStream_t* out, unsigned flags) {
    SIMT_ENTER("cudaStreamCreateWithFlags");
    SIMT_REAL(__real_cudaStreamCreateWithFlags(out, flags));
    ++self().report.streams;
    return cudaSuccess;
}
SIMT_WRAP(cudaStreamDestroy, cudaStream_t stream) {
    --self().report.streams;
    return __real_cudaStreamDestroy(stream);
}
SIMT_WRAP(cudaStreamSynchronize, cudaStream_t stream) {
    SIMT_ENTER("cudaStreamSynchronize");
    ++self().report.synchronizations;
    return __real_cudaStreamSynchronize(stream);
}

SIMT_WRAP(cudaStreamBeginCapture, cudaStream_t stream, cudaStreamCaptureMode mode) {
    SIMT_ENTER("cudaStreamBeginCapture");
    SIMT_REAL(__real_cudaStreamBeginCapture(stream, mode));
    self().capturing = true;
    self().recording = {};
    ++self().report.recordings;
    return cudaSuccess;
}
SIMT_WRAP(cudaStreamEndCapture, cudaStream_t stream, cudaGraph_t* out) {
    self().capturing = false;
    SIMT_REAL(__real_cudaStreamEndCapture(stream, out));
    self().graphs[*out] = self().recording;
    return cudaSuccess;
}
SIMT_WRAP(cudaGraphInstantiate, cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
    SIMT_ENTER("cudaGraphInstantiate");
    SIMT_REAL(__real_cudaGraphInstantiate(out, graph, flags));
    self().ready[*out] = self().graphs[graph];
    ++self().report.graphs;
    return cudaSuccess;
}
SIMT_WRAP(cudaGraphDestroy, cudaGraph_t graph) {
    self().graphs.erase(graph);
    return __real_cudaGraphDestroy(graph);
}
SIMT_WRAP(cudaGraphExecDestroy, cudaGraphExec_t graph) {
    self().ready.erase(graph);
    --self().report.graphs;
    return __real_cudaGraphExecDestroy(graph);
}
SIMT_WRAP(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t stream) {
    SIMT_ENTER("cudaGraphLaunch");
    SIMT_REAL(__real_cudaGraphLaunch(graph, stream));
    ++self().report.graph_launches;
    simt::add(self().ready[graph]);
    return cudaSuccess;
}

// What nvcc makes of kernel<<<...>>>; its result goes unread, and cudaGetLastError is asked.
SIMT_WRAP(__cudaLaunchKernel, void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared, cudaStream_t stream) {
    if (const cudaError_t error = simt::enter("launch"); error != cudaSuccess) return self().launch = error;
    simt::note({1, 0, 0});
    return __real___cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
SIMT_WRAP(cudaGetLastError) {
    const cudaError_t planned = std::exchange(self().launch, cudaSuccess), real = __real_cudaGetLastError();
    return planned != cudaSuccess ? planned : real;
}

}  // extern "C"

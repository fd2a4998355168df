#pragma once
// ggml as a peer: its C interface, bound when the program runs. Without its libraries everything still builds, and a benchmark
// says that it has nobody to compare with.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "libraries.hpp"

namespace bench::peer {

namespace fg = frugal;

// Numbers and structures of ggml's interface, as far as they are used here.
// Types have the numbers that GGUF files have.
enum ggml_type : int { f32 = 0, f16 = 1, q8_0 = 8, q4_k = 12, i32 = 26, i64 = 27 };
struct ggml_tensor;
struct ggml_context;
struct ggml_graph;
struct ggml_buffer;
struct ggml_buffer_type;
struct ggml_backend;
struct ggml_device;
struct ggml_registry;
struct ggml_threads;
struct ggml_parameters {
    std::size_t bytes;
    void* memory;
    bool no_data;
};
struct ggml_threads_parameters {
    bool processors[512];
    int count;
    int priority;
    std::uint32_t poll;  // 0: workers sleep when there is nothing to do; 100: they spin for longest
    bool strict_placement, paused;
};
inline constexpr int neox_rope = 2, interleaved_mrope = 40;
inline constexpr int accumulate_f32 = 10;

// X(result, name, arguments…)
#define FRUGAL_PEER_FUNCTIONS(X)                                                                                                 \
    X(ggml_context*, ggml_init, ggml_parameters)                                                                                 \
    X(const char*, ggml_version, )                                                                                               \
    X(void, ggml_free, ggml_context*)                                                                                            \
    X(std::size_t, ggml_tensor_overhead, )                                                                                       \
    X(std::size_t, ggml_graph_overhead_custom, std::size_t, bool)                                                                \
    X(std::size_t, ggml_row_size, int, std::int64_t)                                                                             \
    X(ggml_tensor*, ggml_new_tensor, ggml_context*, int, int, const std::int64_t*)                                               \
    X(ggml_tensor*, ggml_view_4d, ggml_context*, ggml_tensor*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,           \
      std::size_t, std::size_t, std::size_t, std::size_t)                                                                        \
    X(ggml_tensor*, ggml_reshape_4d, ggml_context*, ggml_tensor*, std::int64_t, std::int64_t, std::int64_t, std::int64_t)        \
    X(ggml_tensor*, ggml_permute, ggml_context*, ggml_tensor*, int, int, int, int)                                               \
    X(ggml_tensor*, ggml_cont, ggml_context*, ggml_tensor*)                                                                      \
    X(ggml_tensor*, ggml_cast, ggml_context*, ggml_tensor*, int)                                                                 \
    X(ggml_tensor*, ggml_add, ggml_context*, ggml_tensor*, ggml_tensor*)                                                         \
    X(ggml_tensor*, ggml_mul, ggml_context*, ggml_tensor*, ggml_tensor*)                                                         \
    X(ggml_tensor*, ggml_scale, ggml_context*, ggml_tensor*, float)                                                              \
    X(ggml_tensor*, ggml_fill, ggml_context*, ggml_tensor*, float)                                                               \
    X(ggml_tensor*, ggml_relu, ggml_context*, ggml_tensor*)                                                                      \
    X(ggml_tensor*, ggml_sigmoid, ggml_context*, ggml_tensor*)                                                                   \
    X(ggml_tensor*, ggml_rms_norm, ggml_context*, ggml_tensor*, float)                                                           \
    X(ggml_tensor*, ggml_mul_mat, ggml_context*, ggml_tensor*, ggml_tensor*)                                                     \
    X(ggml_tensor*, ggml_mul_mat_id, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*)                                    \
    X(ggml_tensor*, ggml_silu, ggml_context*, ggml_tensor*)                                                                      \
    X(ggml_tensor*, ggml_swiglu_split, ggml_context*, ggml_tensor*, ggml_tensor*)                                                \
    X(ggml_tensor*, ggml_l2_norm, ggml_context*, ggml_tensor*, float)                                                            \
    X(ggml_tensor*, ggml_soft_max, ggml_context*, ggml_tensor*)                                                                  \
    X(ggml_tensor*, ggml_argsort_top_k, ggml_context*, ggml_tensor*, int)                                                        \
    X(ggml_tensor*, ggml_sum_rows, ggml_context*, ggml_tensor*)                                                                  \
    X(ggml_tensor*, ggml_div, ggml_context*, ggml_tensor*, ggml_tensor*)                                                         \
    X(ggml_tensor*, ggml_concat, ggml_context*, ggml_tensor*, ggml_tensor*, int)                                                 \
    X(ggml_tensor*, ggml_cpy, ggml_context*, ggml_tensor*, ggml_tensor*)                                                         \
    X(ggml_tensor*, ggml_ssm_conv, ggml_context*, ggml_tensor*, ggml_tensor*)                                                    \
    X(ggml_tensor*, ggml_gated_delta_net, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*,   \
      ggml_tensor*, std::int64_t)                                                                                                \
    X(ggml_tensor*, ggml_rope_ext, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, int, int, int, float, float, float,  \
      float, float, float)                                                                                                       \
    X(ggml_tensor*, ggml_get_rows, ggml_context*, ggml_tensor*, ggml_tensor*)                                                    \
    X(ggml_tensor*, ggml_set_rows, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*)                                      \
    X(ggml_tensor*, ggml_top_k, ggml_context*, ggml_tensor*, int)                                                                \
    X(ggml_tensor*, ggml_argmax, ggml_context*, ggml_tensor*)                                                                    \
    X(ggml_tensor*, ggml_dsv4_hc_pre_gated, ggml_context*, ggml_tensor*, ggml_tensor*, float)                                    \
    X(ggml_tensor*, ggml_dsv4_hc_post, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*)                    \
    X(ggml_tensor*, ggml_rope_multi, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, int, int*, int, int, float, float, \
      float, float, float, float)                                                                                                \
    X(ggml_tensor*, ggml_flash_attn_ext, ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*, float, float,    \
      float)                                                                                                                     \
    X(ggml_graph*, ggml_new_graph_custom, ggml_context*, std::size_t, bool)                                                      \
    X(void, ggml_build_forward_expand, ggml_graph*, ggml_tensor*)                                                                \
    X(ggml_backend*, ggml_backend_cpu_init, )                                                                                    \
    X(void, ggml_backend_cpu_set_n_threads, ggml_backend*, int)                                                                  \
    X(void, ggml_backend_cpu_set_threadpool, ggml_backend*, ggml_threads*)                                                       \
    X(void, ggml_threadpool_params_init, ggml_threads_parameters*, int)                                                          \
    X(ggml_threads*, ggml_threadpool_new, ggml_threads_parameters*)                                                              \
    X(void, ggml_threadpool_free, ggml_threads*)                                                                                 \
    X(void, ggml_threadpool_pause, ggml_threads*)                                                                                \
    X(void, ggml_threadpool_resume, ggml_threads*)                                                                               \
    X(ggml_device*, ggml_backend_get_device, ggml_backend*)                                                                      \
    X(ggml_registry*, ggml_backend_dev_backend_reg, ggml_device*)                                                                \
    X(void*, ggml_backend_reg_get_proc_address, ggml_registry*, const char*)                                                     \
    X(bool, ggml_backend_dev_supports_op, ggml_device*, const ggml_tensor*)                                                      \
    X(const char*, ggml_backend_buft_name, ggml_buffer_type*)                                                                    \
    X(int, ggml_backend_graph_compute, ggml_backend*, ggml_graph*)                                                               \
    X(ggml_buffer_type*, ggml_backend_cpu_buffer_type, )                                                                         \
    X(ggml_buffer*, ggml_backend_alloc_ctx_tensors_from_buft, ggml_context*, ggml_buffer_type*)                                  \
    X(void, ggml_backend_buffer_free, ggml_buffer*)                                                                              \
    X(void, ggml_backend_tensor_set, ggml_tensor*, const void*, std::size_t, std::size_t)                                        \
    X(void, ggml_backend_tensor_get, const ggml_tensor*, void*, std::size_t, std::size_t)                                        \
    X(bool, ggml_prec_set_acc, ggml_tensor*, int)                                                                                \
    X(void, ggml_log_set, void (*)(int, const char*, void*), void*)

/// ggml's functions, and its CPU backend.
struct ggml {
#define FRUGAL_PEER_MEMBER(result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
    FRUGAL_PEER_FUNCTIONS(FRUGAL_PEER_MEMBER)
#undef FRUGAL_PEER_MEMBER
    ggml_backend* backend = nullptr;

    /// Loads the libraries that FRUGAL_PEER lists, parted by colons, in that order.
    /// Errors: unsupported (FRUGAL_PEER is not set, or none), io (a library cannot be loaded or lacks a function).
    [[nodiscard]] static fg::result<ggml> load() {
        FRUGAL_TRY(load_libraries("FRUGAL_PEER", "get_ggml.sh"));
        ggml out;
        const char* missing = nullptr;
#define FRUGAL_PEER_BIND(result, name, ...) bind(out.name, #name, missing);
        FRUGAL_PEER_FUNCTIONS(FRUGAL_PEER_BIND)
#undef FRUGAL_PEER_BIND
        if (missing != nullptr) return fg::fail(fg::errc::io, "FRUGAL_PEER's libraries have no ", missing);
        out.ggml_log_set([](int level, const char* text, void*) { level >= 3 ? (void)std::fputs(text, stderr) : void(); },
                         nullptr);
        out.backend = out.ggml_backend_cpu_init();
        if (out.backend == nullptr) return fg::fail(fg::errc::io, "ggml has no CPU backend");
        out.pools_ = std::make_shared<pools>();
        return out;
    }

    /// So many threads compute from now on, and spin between operators until `rest`: whoever else is timed meanwhile suffers.
    void wake(std::size_t threads) const {
        if (pools_->awake == threads) return;
        rest();
        ggml_threads*& pool = pools_->of[threads];
        if (pool == nullptr) {
            ggml_threads_parameters wanted{};
            ggml_threadpool_params_init(&wanted, static_cast<int>(threads));
            wanted.poll = 100;
            pool = ggml_threadpool_new(&wanted);
        }
        ggml_backend_cpu_set_n_threads(backend, static_cast<int>(threads));
        ggml_backend_cpu_set_threadpool(backend, pool);
        if (threads > 1) ggml_threadpool_resume(pool);
        pools_->awake = threads;
    }
    void rest() const {
        if (pools_->awake > 1) ggml_threadpool_pause(pools_->of[pools_->awake]);
        pools_->awake = 0;
    }
    [[nodiscard]] std::size_t awake() const noexcept { return pools_->awake; }

    /// Where weights may lie, with names: plain memory, and those that store them in another order. None is fastest for all.
    [[nodiscard]] std::vector<std::pair<std::string, ggml_buffer_type*>> weight_buffers() const {
        std::vector<std::pair<std::string, ggml_buffer_type*>> out{{"CPU", ggml_backend_cpu_buffer_type()}};
        ggml_device* const device = ggml_backend_get_device(backend);
        void* const found =
            ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
        ggml_buffer_type** (*extra)(ggml_device*) = nullptr;
        std::memcpy(&extra, &found, sizeof found);
        if (extra == nullptr) return out;
        for (ggml_buffer_type** each = extra(device); each != nullptr && *each != nullptr; ++each)
            out.emplace_back(ggml_backend_buft_name(*each), *each);
        return out;
    }

private:
    struct pools {
        std::map<std::size_t, ggml_threads*> of;  // by number of threads; they live as long as the process
        std::size_t awake = 0;
    };
    std::shared_ptr<pools> pools_;
};

/// Weights of one type and shape in a buffer of ggml's choice.
class weights {
public:
    weights(const ggml& library, ggml_type type, std::initializer_list<std::size_t> sizes, std::size_t copies) : g(library) {
        context_ = g.ggml_init({g.ggml_tensor_overhead() * copies, nullptr, true});
        std::int64_t extents[4] = {1, 1, 1, 1};
        int dimensions = 0;
        for (const std::size_t size : sizes) extents[dimensions++] = static_cast<std::int64_t>(size);
        for (std::size_t i = 0; i < copies; ++i) tensors_.push_back(g.ggml_new_tensor(context_, type, dimensions, extents));
    }
    weights(const weights&) = delete;
    weights& operator=(const weights&) = delete;
    ~weights() {
        if (memory_ != nullptr) g.ggml_backend_buffer_free(memory_);
        g.ggml_free(context_);
    }

    [[nodiscard]] const std::vector<ggml_tensor*>& tensors() const noexcept { return tensors_; }
    /// Errors: out_of_memory.
    [[nodiscard]] fg::status allocate(ggml_buffer_type* where) {
        memory_ = g.ggml_backend_alloc_ctx_tensors_from_buft(context_, where);
        return memory_ != nullptr ? fg::status{} : fg::status(fg::fail(fg::errc::out_of_memory, "ggml could not allocate"));
    }
    /// Precondition: ggml has an operator for these weights in their buffer.
    void set(std::size_t copy, const void* data, std::size_t bytes) { g.ggml_backend_tensor_set(tensors_[copy], data, 0, bytes); }

private:
    const ggml& g;
    ggml_context* context_ = nullptr;
    ggml_buffer* memory_ = nullptr;
    std::vector<ggml_tensor*> tensors_;
};

/// Tensors with memory, and a graph of what is computed from them. Build the graph, `allocate`, fill the inputs, `compute`.
class graph {
public:
    /// `nodes`: room for this many tensors.
    graph(const ggml& library, std::size_t nodes) : g(library) {
        context_ = g.ggml_init({g.ggml_tensor_overhead() * nodes + g.ggml_graph_overhead_custom(nodes, false), nullptr, true});
        graph_ = g.ggml_new_graph_custom(context_, nodes, false);
    }
    graph(const graph&) = delete;
    graph& operator=(const graph&) = delete;
    ~graph() {
        if (memory_ != nullptr) g.ggml_backend_buffer_free(memory_);
        g.ggml_free(context_);
    }

    [[nodiscard]] ggml_context* context() const noexcept { return context_; }
    ggml_tensor* tensor(ggml_type type, std::initializer_list<std::size_t> sizes) {
        std::int64_t extents[4] = {1, 1, 1, 1};
        int dimensions = 0;
        for (const std::size_t size : sizes) extents[dimensions++] = static_cast<std::int64_t>(size);
        return g.ggml_new_tensor(context_, type, dimensions, extents);
    }
    /// Computes `result`, and whatever it takes, whenever the graph is computed; in the order of these calls.
    void expand(ggml_tensor* result) { g.ggml_build_forward_expand(graph_, result); }
    /// Errors: out_of_memory.
    [[nodiscard]] fg::status allocate() {
        memory_ = g.ggml_backend_alloc_ctx_tensors_from_buft(context_, g.ggml_backend_cpu_buffer_type());
        return memory_ != nullptr ? fg::status{} : fg::status(fg::fail(fg::errc::out_of_memory, "ggml could not allocate"));
    }
    template <class T>
    void set(ggml_tensor* to, const T* values, std::size_t count, std::size_t first = 0) const {
        g.ggml_backend_tensor_set(to, values, first * sizeof(T), count * sizeof(T));
    }
    template <class T>
    void get(const ggml_tensor* from, T* values, std::size_t count) const {
        g.ggml_backend_tensor_get(from, values, 0, count * sizeof(T));
    }
    /// Whether ggml can compute this, given where its operands lie.
    [[nodiscard]] bool supported(const ggml_tensor* result) const {
        return g.ggml_backend_dev_supports_op(g.ggml_backend_get_device(g.backend), result);
    }
    /// Wakes the threads for this call unless they are awake. Errors: device_failed.
    [[nodiscard]] fg::status compute(std::size_t threads) const {
        const bool asleep = g.awake() != threads;
        if (asleep) g.wake(threads);
        const int failed = g.ggml_backend_graph_compute(g.backend, graph_);
        if (asleep) g.rest();
        return failed == 0 ? fg::status{} : fg::status(fg::fail(fg::errc::device_failed, "ggml's graph ended with ", failed));
    }

    const ggml& g;

private:
    ggml_context* context_ = nullptr;
    ggml_graph* graph_ = nullptr;
    ggml_buffer* memory_ = nullptr;
};

}  // namespace bench::peer

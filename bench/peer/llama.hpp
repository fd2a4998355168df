#pragma once
// llama.cpp as a peer for whole models: its C interface, bound when the program runs (see ggml.hpp). Structures are those of the
// version that get_llama.sh fetches, since they are passed by value.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "libraries.hpp"

namespace bench::peer {

namespace fg = frugal;

struct llama_model;
struct llama_context;
struct llama_memory;
struct llama_model_parameters {
    void *devices, *buffer_types;
    std::int32_t gpu_layers;
    int split_mode, load_mode, lazy_mode;
    std::int32_t main_gpu;
    const float* tensor_split;
    void *progress, *progress_data, *overrides;
    bool vocabulary_only, check_tensors, repack, no_host, no_alloc, load_mtp;
};
struct llama_context_parameters {
    std::uint32_t context, batch, ubatch, sequences, snapshots, outputs, outputs_a_sequence;
    std::int32_t threads, batch_threads;
    int kind, rope_scaling, pooling, attention, flash_attention;
    float rope[2], yarn[4];
    std::uint32_t yarn_context;
    float defragment;
    void *on_node, *on_node_data;
    int key_type, value_type;
    void *abort, *abort_data;
    bool embeddings, offload_attention, no_timings, offload_operators, full_window, unified;
    void* samplers;
    std::size_t sampler_count;
    llama_context* other;
};
struct llama_batch {
    std::int32_t count;
    std::int32_t* tokens;
    float* embeddings;
    std::int32_t *positions, *sequence_counts;
    std::int32_t** sequences;
    std::int8_t* outputs;
};

// X(result, name, arguments…)
#define FRUGAL_PEER_LLAMA_FUNCTIONS(X)                                                                 \
    X(void, llama_backend_init, )                                                                      \
    X(void, llama_log_set, void (*)(int, const char*, void*), void*)                                   \
    X(llama_model_parameters, llama_model_default_params, )                                            \
    X(llama_context_parameters, llama_context_default_params, )                                        \
    X(llama_model*, llama_model_load_from_file, const char*, llama_model_parameters)                   \
    X(void, llama_model_free, llama_model*)                                                            \
    X(llama_context*, llama_init_from_model, llama_model*, llama_context_parameters)                   \
    X(void, llama_free, llama_context*)                                                                \
    X(void, llama_set_n_threads, llama_context*, std::int32_t, std::int32_t)                           \
    X(int, llama_decode, llama_context*, llama_batch)                                                  \
    X(float*, llama_get_logits_ith, llama_context*, std::int32_t)                                      \
    X(llama_memory*, llama_get_memory, const llama_context*)                                           \
    X(void, llama_memory_clear, llama_memory*, bool)                                                   \
    X(std::size_t, llama_state_seq_get_size, llama_context*, std::int32_t)                             \
    X(std::size_t, llama_state_seq_get_data, llama_context*, std::uint8_t*, std::size_t, std::int32_t) \
    X(std::size_t, llama_state_seq_set_data, llama_context*, const std::uint8_t*, std::size_t, std::int32_t)

/// llama.cpp's functions.
struct llama {
#define FRUGAL_PEER_MEMBER(result, name, ...) result (*name)(__VA_ARGS__) = nullptr;
    FRUGAL_PEER_LLAMA_FUNCTIONS(FRUGAL_PEER_MEMBER)
#undef FRUGAL_PEER_MEMBER

    /// Loads the libraries that FRUGAL_PEER_LLAMA lists, parted by colons, in that order.
    /// Errors: unsupported (it is not set, or none), io (a library cannot be loaded or lacks a function).
    [[nodiscard]] static fg::result<llama> load() {
        FRUGAL_TRY(load_libraries("FRUGAL_PEER_LLAMA", "get_llama.sh"));
        llama out;
        const char* missing = nullptr;
#define FRUGAL_PEER_BIND(result, name, ...) bind(out.name, #name, missing);
        FRUGAL_PEER_LLAMA_FUNCTIONS(FRUGAL_PEER_BIND)
#undef FRUGAL_PEER_BIND
        if (missing != nullptr) return fg::fail(fg::errc::io, "FRUGAL_PEER_LLAMA's libraries have no ", missing);
        out.llama_log_set([](int level, const char* text, void*) { level >= 4 ? (void)std::fputs(text, stderr) : void(); },
                          nullptr);
        out.llama_backend_init();
        return out;
    }
};

/// The weights of one file.
class llama_file {
public:
    /// Errors: unsupported (llama.cpp does not load the file).
    [[nodiscard]] static fg::result<llama_file> open(const llama& library, const std::string& path) {
        llama_file out(library);
        out.model_ = library.llama_model_load_from_file(path.c_str(), library.llama_model_default_params());
        if (out.model_ == nullptr) return fg::fail(fg::errc::unsupported, "llama.cpp does not load ", path);
        return out;
    }
    llama_file(llama_file&& other) noexcept : g(other.g), model_(std::exchange(other.model_, nullptr)) {}
    llama_file& operator=(llama_file&&) = delete;
    ~llama_file() {
        if (model_ != nullptr) g.llama_model_free(model_);
    }

    [[nodiscard]] const llama& library() const noexcept { return g; }
    [[nodiscard]] llama_model* model() const noexcept { return model_; }

private:
    explicit llama_file(const llama& library) : g(library) {}

    const llama& g;
    llama_model* model_ = nullptr;
};

/// Sequences of one model, each with room for `context` tokens. The file must outlive it.
class llama_run {
public:
    /// Errors: unsupported (llama.cpp makes no such context).
    [[nodiscard]] static fg::result<llama_run> open(const llama_file& file, std::size_t sequences, std::size_t context) {
        llama_run out(file.library());
        auto how = out.g.llama_context_default_params();
        how.context = static_cast<std::uint32_t>(sequences * context);
        how.batch = how.ubatch = 512;
        how.sequences = static_cast<std::uint32_t>(sequences);
        how.flash_attention = 1;
        out.context_ = out.g.llama_init_from_model(file.model(), how);
        if (out.context_ == nullptr)
            return fg::fail(fg::errc::unsupported, "llama.cpp makes no context of ", sequences, " times ", context, " tokens");
        return out;
    }
    llama_run(llama_run&& other) noexcept : g(other.g), context_(std::exchange(other.context_, nullptr)) {}
    llama_run& operator=(llama_run&&) = delete;
    ~llama_run() {
        if (context_ != nullptr) g.llama_free(context_);
    }

    void use_threads(std::size_t count) {
        g.llama_set_n_threads(context_, static_cast<std::int32_t>(count), static_cast<std::int32_t>(count));
    }
    void clear() { g.llama_memory_clear(g.llama_get_memory(context_), true); }
    /// Appends equally many tokens to each of the first sequences, those of one after those of another. The logits of each
    /// one's last token are kept until the next call. Errors: unsupported.
    [[nodiscard]] fg::status forward(std::span<const std::int32_t> tokens, std::size_t sequences) {
        const std::size_t each = tokens.size() / sequences;
        tokens_.assign(tokens.begin(), tokens.end());
        counts_.assign(tokens.size(), 1);
        outputs_.assign(tokens.size(), 0);
        ids_.resize(tokens.size());
        lists_.resize(tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            ids_[i] = static_cast<std::int32_t>(i / each);
            lists_[i] = &ids_[i];
            if (i % each == each - 1) outputs_[i] = 1;
        }
        each_ = each;
        const llama_batch batch{static_cast<std::int32_t>(tokens.size()),
                                tokens_.data(),
                                nullptr,
                                nullptr,
                                counts_.data(),
                                lists_.data(),
                                outputs_.data()};
        const int done = g.llama_decode(context_, batch);
        if (done != 0) return fg::fail(fg::errc::unsupported, "llama_decode returns ", done);
        return {};
    }
    [[nodiscard]] std::span<const float> logits(std::size_t sequence, std::size_t vocabulary) const {
        return {g.llama_get_logits_ith(context_, static_cast<std::int32_t>((sequence + 1) * each_ - 1)), vocabulary};
    }

    /// Makes the first sequence, which holds a few tokens, one of `depth` tokens: the saved state is read back with the rows of its
    /// caches repeated. Errors: unsupported (the state is not laid out as in the version that get_llama.sh fetches).
    [[nodiscard]] fg::status deepen(std::size_t depth) {
        std::vector<std::uint8_t> saved(g.llama_state_seq_get_size(context_, 0));
        saved.resize(g.llama_state_seq_get_data(context_, saved.data(), saved.size(), 0));
        state_bytes state{saved, 0, {}, true};
        (void)state.copy<std::uint64_t>();  // what kind of file it would be
        state.repeat_cache(depth);
        state.recurrent(depth);
        if (state.good && state.at < saved.size()) state.repeat_cache(depth);  // the indexer's keys
        if (!state.good || state.at != saved.size())
            return fg::fail(fg::errc::unsupported, "llama.cpp's saved state is not laid out as expected");
        clear();
        if (g.llama_state_seq_set_data(context_, state.out.data(), state.out.size(), 0) != state.out.size())
            return fg::fail(fg::errc::unsupported, "llama.cpp does not read a state of ", depth, " tokens");
        return {};
    }

private:
    explicit llama_run(const llama& library) : g(library) {}

    /// Reads a saved state and writes a longer one.
    struct state_bytes {
        const std::vector<std::uint8_t>& in;
        std::size_t at;
        std::vector<std::uint8_t> out;
        bool good;

        template <class T>
        T take() {
            T value{};
            good = good && sizeof value <= in.size() - at;
            if (good) {
                std::memcpy(&value, in.data() + at, sizeof value);
                at += sizeof value;
            }
            return value;
        }
        template <class T>
        void put(T value) {
            const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
            out.insert(out.end(), bytes, bytes + sizeof value);
        }
        template <class T>
        T copy() {
            const T value = take<T>();
            put(value);
            return value;
        }
        void rows(std::size_t bytes, std::size_t times) {
            good = good && bytes <= in.size() - at;
            if (!good) return;
            while (times-- != 0) out.insert(out.end(), in.begin() + std::ptrdiff_t(at), in.begin() + std::ptrdiff_t(at + bytes));
            at += bytes;
        }

        // streams, cells, a position, a count of sequences, a place (x, y, token) and a sequence for each; then for keys, and
        // for values where there are any: type, bytes of a row, rows.
        void repeat_cache(std::size_t depth) {
            if (copy<std::uint32_t>() != 1) good = false;
            const std::uint32_t cells = take<std::uint32_t>();
            if (!good || cells == 0 || depth % cells != 0) {
                good = false;
                return;
            }
            put(static_cast<std::uint32_t>(depth));
            const std::size_t repeat = depth / cells;
            std::vector<std::int32_t> tokens(cells);
            for (std::uint32_t i = 0; i < cells; ++i) {
                for (int word = 0; word < 4; ++word) (void)take<std::int32_t>();
                tokens[i] = take<std::int32_t>();
                (void)take<std::int32_t>();
            }
            for (std::size_t i = 0; i < depth; ++i) {
                const auto position = static_cast<std::int32_t>(i);
                for (const std::int32_t word : {position, 1, position, position, tokens[i % cells], 0}) put(word);
            }
            if (copy<std::uint32_t>() != 0) good = false;  // values as rows, not as columns
            const std::uint32_t layers = copy<std::uint32_t>();
            // The keys of all layers, then the values; an indexer has no values.
            for (int kind = 0; kind < 2 && good; ++kind) {
                const std::size_t begin = at;
                const std::size_t written = out.size();
                for (std::uint32_t layer = 0; layer < layers && good; ++layer) {
                    const auto type = copy<std::int32_t>();
                    const auto bytes = copy<std::uint64_t>();
                    if (kind == 1 && (type != 1 || bytes > in.size())) good = false;
                    rows(bytes * cells, repeat);
                }
                if (kind == 1 && !good) {
                    at = begin;
                    out.resize(written);
                    good = true;
                }
            }
        }
        // One cell: its position is that of the last token. All else as it is; where it ends is not written down, so the layers'
        // rows are walked: those of convolutions, with a second row in the layer of n-grams, then those of the states.
        void recurrent(std::size_t depth) {
            if (copy<std::uint32_t>() != 1) good = false;
            (void)take<std::int32_t>();
            put(static_cast<std::int32_t>(depth - 1));
            if (copy<std::uint32_t>() != 0) good = false;
            (void)copy<std::uint32_t>();
            (void)copy<std::uint32_t>();
            while (good && in.size() - at >= 12) {
                std::int32_t type = 0;
                std::uint64_t bytes = 0;
                std::memcpy(&type, in.data() + at, sizeof type);
                if (type == 0) {  // f32 rows of a layer
                    (void)copy<std::int32_t>();
                } else {
                    // Not a type: the bytes of a second row, or the begin of the indexer's cache (one stream, its cells).
                    if (type == 1) return;
                }
                std::memcpy(&bytes, in.data() + at, sizeof bytes);
                if (bytes > in.size() - at) {
                    good = false;
                    return;
                }
                (void)copy<std::uint64_t>();
                rows(bytes, 1);
            }
        }
    };

    const llama& g;
    llama_context* context_ = nullptr;
    std::size_t each_ = 0;  // tokens of a sequence in the latest call
    std::vector<std::int32_t> tokens_, counts_, ids_;
    std::vector<std::int32_t*> lists_;
    std::vector<std::int8_t> outputs_;
};

}  // namespace bench::peer

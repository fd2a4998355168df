#pragma once
// A graph of ggml's operators with its inputs: build it, `allocate`, then run it as often as you like.
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "ggml.hpp"

namespace bench::peer {

class prepared_graph {
public:
    using tensor = ggml_tensor*;

    /// `nodes`: room for this many tensors.
    prepared_graph(const ggml& library, std::size_t nodes, std::size_t threads) : graph_(library, nodes), threads_(threads) {}

    [[nodiscard]] const ggml& g() const noexcept { return graph_.g; }
    [[nodiscard]] ggml_context* context() const noexcept { return graph_.context(); }
    [[nodiscard]] tensor empty(ggml_type type, std::initializer_list<std::size_t> sizes) { return graph_.tensor(type, sizes); }
    /// A tensor that `allocate` fills with a copy of these values; sizes from the fastest dimension.
    template <class T>
    [[nodiscard]] tensor input(ggml_type type, std::initializer_list<std::size_t> sizes, std::vector<T> values) {
        if (next_ < inputs_.size()) return inputs_[next_++];
        const tensor out = graph_.tensor(type, sizes);
        inputs_.push_back(out);
        ++next_;
        fill_.push_back([this, out, held = std::move(values)] { graph_.set(out, held.data(), held.size()); });
        return out;
    }
    [[nodiscard]] tensor input(std::initializer_list<std::size_t> sizes, const std::vector<float>& values) {
        return input(f32, sizes, values);
    }
    /// From now on `input` gives the tensors that it gave before, in order: for computing the same several times.
    void same_inputs_again() { next_ = 0; }
    [[nodiscard]] tensor reshape(tensor x, std::size_t a, std::size_t b = 1, std::size_t c = 1) const {
        const auto n = [](std::size_t size) { return static_cast<std::int64_t>(size); };
        return g().ggml_reshape_4d(context(), x, n(a), n(b), n(c), 1);
    }
    /// Part of x: extents, the bytes between neighbours in dimensions 1 and 2, the first byte.
    [[nodiscard]] tensor view(tensor x, std::size_t a, std::size_t b, std::size_t c, std::size_t b_bytes, std::size_t c_bytes,
                              std::size_t first = 0) const {
        const auto n = [](std::size_t size) { return static_cast<std::int64_t>(size); };
        return g().ggml_view_4d(context(), x, n(a), n(b), n(c), 1, b_bytes, c_bytes, c_bytes * c, first);
    }
    void expand(tensor result) { graph_.expand(result); }
    [[nodiscard]] bool supported(tensor result) const { return graph_.supported(result); }
    /// `result`: its first `count` floats are the result. Errors: out_of_memory.
    [[nodiscard]] fg::status allocate(tensor result, std::size_t count) {
        FRUGAL_TRY(graph_.allocate());
        for (const auto& each : fill_) each();
        fill_.clear();
        result_ = result;
        count_ = count;
        return {};
    }

    /// Errors: device_failed.
    [[nodiscard]] fg::status run() const { return graph_.compute(threads_); }
    [[nodiscard]] std::vector<float> result() const {
        std::vector<float> out(count_);
        graph_.get(result_, out.data(), count_);
        return out;
    }

private:
    graph graph_;
    std::size_t threads_, count_ = 0, next_ = 0;
    tensor result_ = nullptr;
    std::vector<tensor> inputs_;
    std::vector<std::function<void()>> fill_;
};

}  // namespace bench::peer

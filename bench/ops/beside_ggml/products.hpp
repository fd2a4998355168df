#pragma once
// A product of weights of one format with a batch of activations, as both sides compute it: ours from weight images, ggml's
// from every kind of buffer it has for these weights.
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contest.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/ops/matmul/image_matmul.hpp"
#include "frugal/tensor/workspace.hpp"

namespace bench {

/// y[t][r] = sum over c of w[r][c] * x[t][c], `copies` times with weights at different places.
struct product {
    std::size_t rows, cols, tokens, copies, threads;
    std::vector<float> x{};
};

// Both sides may round activations to 8 bits in blocks: each is off by up to 1/254 of its block's largest, sums of thousands
// by half a percent of their size, the worst of some hundred by two.
inline constexpr double product_tolerance = 0.05;

template <class Isa>
class our_product {
public:
    our_product(const product& what, std::size_t threads)
        : what_(what), device_(executor(threads)), y_(what.tokens * what.rows) {}

    [[nodiscard]] fg::status pack(const fg::quant::weight_view& w) {
        for (std::size_t i = 0; i < what_.copies; ++i) {
            FRUGAL_TRY_ASSIGN(auto image, device_.pack(std::array{w}));
            images_.push_back(std::move(image));
        }
        return {};
    }
    [[nodiscard]] fg::status run() {
        const std::array y{as_matrix(y_, what_.tokens)};
        for (const auto& image : images_)
            FRUGAL_TRY(fg::ops::image_matmul(device_, scratch_, image, as_matrix(what_.x, what_.tokens),
                                             std::span<const fg::matrix_view<float>>(y)));
        return {};
    }
    [[nodiscard]] std::vector<float> result() const { return y_; }

private:
    using device = fg::device::packed_cpu<Isa, fg::counters_off, fg::quant::all, fg::device::q8_activations>;
    const product& what_;
    device device_;
    fg::workspace scratch_;
    std::vector<typename device::image> images_;
    std::vector<float> y_;
};

class peer_product {
public:
    peer_product(const peer::ggml& library, const product& what, peer::ggml_type type)
        : what_(what),
          weights_(library, type, {what.cols, what.rows}, what.copies),
          graph_(library, 2 * what.copies + 16),
          x_(graph_.tensor(peer::f32, {what.cols, what.tokens})) {}

    /// False: ggml has no product for these weights in such a buffer. Errors: out_of_memory.
    [[nodiscard]] fg::result<bool> place(peer::ggml_buffer_type* where, const fg::quant::weight_view& w) {
        FRUGAL_TRY(weights_.allocate(where));
        for (peer::ggml_tensor* const each : weights_.tensors()) {
            y_ = graph_.g.ggml_mul_mat(graph_.context(), each, x_);
            if (!graph_.supported(y_)) return false;
            graph_.expand(y_);
        }
        for (std::size_t i = 0; i < what_.copies; ++i) weights_.set(i, w.data, w.bytes());
        FRUGAL_TRY(graph_.allocate());
        graph_.set(x_, what_.x.data(), what_.x.size());
        return true;
    }
    [[nodiscard]] fg::status run() const { return graph_.compute(what_.threads); }
    [[nodiscard]] std::vector<float> result() const {
        std::vector<float> y(what_.tokens * what_.rows);
        graph_.get(y_, y.data(), y.size());
        return y;
    }

private:
    const product& what_;
    peer::weights weights_;
    peer::graph graph_;
    peer::ggml_tensor *x_, *y_ = nullptr;
};

/// Holds `out` between our product in every instruction set and ggml's from every buffer. `w` holds what all copies hold.
template <class Format>
fg::status hold_product(contests& all, const product& what, const weights<Format>& w, contest out) {
    out.threads = what.threads;
    for (const std::size_t i : out.checked) out.want.push_back(w.dot(i % what.rows, what.x.data() + i / what.rows * what.cols));
    fg::status packed;
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        const auto ours = std::make_shared<our_product<Isa>>(what, what.threads);
        if (packed) packed = ours->pack(w.view());
        out.enter(std::string(Isa::name), true, ours, product_tolerance, what.copies);
    });
    FRUGAL_TRY(std::move(packed));
    if (all.peer() != nullptr)
        for (const auto& [name, where] : all.peer()->weight_buffers()) {
            const auto theirs = std::make_shared<peer_product>(*all.peer(), what, static_cast<peer::ggml_type>(Format::type));
            FRUGAL_TRY_ASSIGN(const bool present, theirs->place(where, w.view()));
            if (present) out.enter(name, false, theirs, product_tolerance, what.copies);
        }
    return all.hold(std::move(out));
}

/// Formats whose products are measured.
using product_formats = fg::quant::list<fg::quant::q8_0, fg::quant::q4_0, fg::quant::q4_k, fg::quant::q5_k, fg::quant::q6_k,
                                        fg::quant::iq4_nl, fg::quant::iq4_xs, fg::quant::mxfp4, fg::quant::bf16, fg::quant::f16>;

/// Calls f(type_tag<Format>) for each until one fails.
template <class F>
fg::status for_each_product_format(F&& f) {
    fg::status out;
    [&]<class... Format>(fg::quant::list<Format...>) {
        ((out = out ? f(fg::type_tag<Format>{}) : std::move(out)), ...);
    }(product_formats{});
    return out;
}

/// Rows and columns of the weights that are measured.
inline constexpr std::size_t product_rows = 6144, product_cols = 2048;

}  // namespace bench

#pragma once
/// How a model's blocks read the residual stream and add to it: a norm before each block, or hyper-connections
/// (layer/hyper_connection.hpp).
#include <cstddef>
#include <span>
#include <string_view>

#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/tensor/tensor_name.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// Where a residual's weights belong: around a layer's mixer, around its feed-forward, before the head.
enum class residual_place { mixer, feed_forward, output };

struct FRUGAL_FLAGGED plain_residual_dims {
    std::size_t hidden = 0;
    float eps = 1e-6f;
};
struct FRUGAL_FLAGGED plain_residual_weights {
    std::span<const float> norm;  ///< [hidden]
};

/// One stream, normed before each block and at the end; what a block makes is added to it.
template <ops::norm_weight_policy NormWeight>
struct FRUGAL_FLAGGED plain_residual {
    static constexpr std::string_view name = "plain";
    using dims = plain_residual_dims;
    using weights = plain_residual_weights;

    /// Sizes: model::config. Errors: invalid_argument.
    template <class Sizes>
    [[nodiscard]] static status validate_sizes(const Sizes&) {
        return {};
    }
    template <class Sizes>
    [[nodiscard]] static dims make_dims(const Sizes& c) {
        return {c.hidden, c.rms_epsilon};
    }
    /// Width of the stream.
    [[nodiscard]] static std::size_t width(const dims& d) noexcept { return d.hidden; }
    /// File: model::layer_file. Errors: its own.
    template <class File>
    [[nodiscard]] static status bind(File& file, residual_place place, const dims& d, weights& w) {
        constexpr tensor_name names[] = {{"attn_norm.weight", "input_layernorm.weight"},
                                         {"post_attention_norm.weight", "post_attention_layernorm.weight"},
                                         {"output_norm.weight", "norm.weight"}};
        return file.vector(names[static_cast<std::size_t>(place)], d.hidden, w.norm);
    }
    using product_lists = type_list<>;
    template <class F>
    [[nodiscard]] static status for_each_list(std::size_t, const weights&, F&&) {
        return {};
    }

    /// Begins the stream with what `look_up(to) -> status` puts into a [rows, hidden]. mixed: [rows, hidden], for use on the way.
    template <class Pass, class LookUp>
    [[nodiscard]] static status begin(Pass&, matrix_view<float> stream, matrix_view<float> /*mixed*/, LookUp&& look_up) {
        return look_up(stream);
    }
    /// Runs `body()`, which makes branch from mixed, between the stream's way out and back in.
    template <class Pass, class Body>
    [[nodiscard]] static status around(Pass& pass, std::size_t /*index*/, const dims& d, const weights& w,
                                       matrix_view<float> stream, matrix_view<float> mixed, matrix_view<float> branch,
                                       Body&& body) {
        FRUGAL_TRY(ops::rms_norm<NormWeight>(pass, w.norm, stream, d.eps, mixed));
        FRUGAL_TRY(body());
        return ops::add(pass, branch, stream);
    }
    /// What the head reads. stream: [rows, width(d)]; y: [rows, hidden].
    template <class Pass>
    [[nodiscard]] static status finish(Pass& pass, std::size_t /*index*/, const dims& d, const weights& w,
                                       matrix_view<const float> stream, matrix_view<float> y) {
        return ops::rms_norm<NormWeight>(pass, w.norm, stream, d.eps, y);
    }
};

}  // namespace layer

FRUGAL_NAMESPACE_END

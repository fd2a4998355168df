#pragma once
/// Block keys of every precision for the tests of the selection, and its rule written down naively.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/tensor/scalar.hpp"

namespace test {

using indices = std::vector<std::uint32_t>;

/// The rule, written down naively.
inline indices by_rule(const std::vector<float>& scores, std::size_t top) {
    indices order(scores.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        const float x = scores[a], y = scores[b];
        if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
        if (!std::isnan(x) && x != y) return x > y;
        return a < b;
    });
    order.resize(std::min(top, order.size()));
    std::sort(order.begin(), order.end());
    return order;
}

/// 1 … most scores of few distinct values, so that many are equal: zeros of either sign, denormals and NaN among them.
inline std::vector<float> random_scores(std::mt19937& generator, std::size_t most) {
    std::vector<float> scores(1 + generator() % most);
    const auto kinds = 1 + generator() % 9;
    for (float& score : scores) {
        const auto kind = generator() % kinds;
        score = kind == 8   ? std::numeric_limits<float>::quiet_NaN()
                : kind == 7 ? -0.0f
                : kind == 6 ? -2.5f
                : kind == 5 ? std::ldexp(1.0f + static_cast<float>(generator() % 3), -140)
                            : static_cast<float>(kind) / 3.0f;
    }
    return scores;
}

/// Keys stored as `Scalar`, in chunks of 8.
template <class Scalar>
class stored_keys {
public:
    stored_keys(const std::vector<float>& keys, std::size_t dim) : dim_(dim), values_(keys.size()), scales_(keys.size() / dim) {
        for (std::size_t b = 0; b < scales_.size(); ++b) {
            if constexpr (std::is_same_v<Scalar, std::int8_t>) {
                scales_[b] = frugal::ops::encode_block_key(&keys[b * dim], dim, &values_[b * dim]);
            } else {
                for (std::size_t i = b * dim; i < (b + 1) * dim; ++i) {
                    if constexpr (std::is_same_v<Scalar, frugal::half>)
                        values_[i] = frugal::to_half(keys[i]);
                    else if constexpr (std::is_same_v<Scalar, frugal::bfloat16>)
                        values_[i] = frugal::to_bfloat16(keys[i]);
                    else
                        values_[i] = keys[i];
                }
            }
        }
        for (std::size_t b = 0; b < scales_.size(); b += 8) {
            chunks_.push_back(&values_[b * dim]);
            scale_chunks_.push_back(&scales_[b]);
        }
    }
    stored_keys(const stored_keys&) = delete;
    stored_keys& operator=(const stored_keys&) = delete;
    ~stored_keys() = default;

    [[nodiscard]] std::size_t blocks() const { return scales_.size(); }
    [[nodiscard]] frugal::ops::block_key_view<Scalar> view() const {
        if constexpr (std::is_same_v<Scalar, std::int8_t>)
            return {chunks_.data(), scale_chunks_.data(), 3, dim_};
        else
            return {chunks_.data(), 3, dim_};
    }
    /// What the stored keys are worth.
    [[nodiscard]] std::vector<float> decoded() const {
        std::vector<float> out(values_.size());
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = std::is_same_v<Scalar, std::int8_t> ? scales_[i / dim_] * frugal::to_float(values_[i])
                                                         : frugal::to_float(values_[i]);
        return out;
    }

private:
    std::size_t dim_;
    std::vector<Scalar> values_;
    std::vector<float> scales_;
    std::vector<const Scalar*> chunks_;
    std::vector<const float*> scale_chunks_;
};

/// One row's queries as keys of `Scalar` are scored with.
template <class Scalar>
class row_queries {
public:
    row_queries(const float* q, std::size_t heads, std::size_t dim) : values_(q, q + heads * dim) {
        if constexpr (std::is_same_v<Scalar, std::int8_t>) {
            codes_.resize(values_.size());
            scale_ = frugal::ops::encode_block_queries(q, heads, dim, codes_.data()).scale;
        }
    }
    [[nodiscard]] frugal::ops::block_queries<Scalar> view() const {
        if constexpr (std::is_same_v<Scalar, std::int8_t>)
            return {codes_.data(), scale_};
        else
            return values_.data();
    }
    [[nodiscard]] float scale() const { return scale_; }
    /// What they are worth: [heads, dim].
    [[nodiscard]] std::vector<float> decoded() const {
        std::vector<float> out = values_;
        if constexpr (std::is_same_v<Scalar, std::int8_t>)
            for (std::size_t i = 0; i < out.size(); ++i) out[i] = scale_ * static_cast<float>(codes_[i]);
        return out;
    }

private:
    std::vector<float> values_;
    std::vector<std::int16_t> codes_;
    float scale_ = 0;
};

/// Calls body(type_tag<Scalar>) for every precision of keys.
template <class Body>
void for_each_key_scalar(Body&& body) {
    body(frugal::type_tag<float>{});
    body(frugal::type_tag<frugal::half>{});
    body(frugal::type_tag<frugal::bfloat16>{});
    body(frugal::type_tag<std::int8_t>{});
}

}  // namespace test

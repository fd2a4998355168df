#pragma once
/// The indexer's keys in each precision.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "frugal/attention/token_store.hpp"
#include "frugal/core/error.hpp"
#include "frugal/core/type_list.hpp"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// Rows of signed bytes with one scale each; what token_store is to the other scalars. Copies are as cheap.
class FRUGAL_FLAGGED scaled_token_store {
public:
    explicit scaled_token_store(std::size_t width = 0) noexcept : codes_(width), scales_(1) {}

    [[nodiscard]] std::size_t size() const noexcept { return codes_.size(); }
    [[nodiscard]] std::size_t width() const noexcept { return codes_.width(); }
    [[nodiscard]] std::size_t bytes() const noexcept { return codes_.bytes() + scales_.bytes(); }
    [[nodiscard]] const token_store<std::int8_t>& codes() const noexcept { return codes_; }
    [[nodiscard]] const token_store<float>& scales() const noexcept { return scales_; }

    /// Errors: out_of_memory (nothing changed that shows).
    [[nodiscard]] status reserve(std::size_t count) {
        FRUGAL_TRY(codes_.reserve(count));
        return scales_.reserve(count);
    }
    /// Fills a reserved row from floats; see ops::encode_block_key.
    void write(std::size_t index, const float* values) noexcept {
        *scales_.reserved_row(index) = ops::encode_block_key(values, codes_.width(), codes_.reserved_row(index));
    }
    void commit(std::size_t count) noexcept {
        codes_.commit(count);
        scales_.commit(count);
    }
    void truncate(std::size_t size) noexcept {
        codes_.truncate(size);
        scales_.truncate(size);
    }
    void save(byte_writer& out) const {
        codes_.save(out);
        scales_.save(out);
    }
    /// Errors: malformed_file (also what no key is encoded as: the sums of products count on that), shape_mismatch,
    /// out_of_memory.
    [[nodiscard]] static result<scaled_token_store> load(byte_reader& in, std::size_t width, std::size_t size) {
        scaled_token_store out(width);
        FRUGAL_TRY_ASSIGN(out.codes_, token_store<std::int8_t>::load(in, width, size));
        FRUGAL_TRY_ASSIGN(out.scales_, token_store<float>::load(in, 1, size));
        for (std::size_t r = 0; r < size; ++r) {
            const std::int8_t* const codes = out.codes_.row(r);
            const float scale = *out.scales_.row(r);
            if (std::find(codes, codes + width, std::int8_t{-128}) != codes + width ||
                !(scale != scale || (scale >= 0 && scale <= (std::numeric_limits<float>::max)())))
                return fail(errc::malformed_file, "saved indexer key ", r, " is no key of 8 bits: its scale is ", scale);
        }
        return out;
    }

private:
    token_store<std::int8_t> codes_;
    token_store<float> scales_;
};

using ops::index_key_scalar;

/// The precisions, finest first. Where two blocks score almost alike, all but f32 may choose another one than the f32
/// reference, which moves logits by far more than rounding does, if rarely the most likely token. ops::selection_recall measures
/// how often.
using index_precisions = type_list<float, half, bfloat16, std::int8_t>;

/// How raw keys are kept beside block keys of this precision: alike, but for bytes as bfloat16. A block's key is made from
/// the mean of its raw keys, whose rounding to bfloat16, a part in 2^9 of each, is below half a step of the codes, a part in
/// 2^8 of the greatest; rounding to bytes twice would show, and f32 would take twice the memory for nothing.
template <index_key_scalar Scalar>
using raw_index_scalar = std::conditional_t<std::is_same_v<Scalar, std::int8_t>, bfloat16, Scalar>;

/// The store of finished block keys of this precision.
template <index_key_scalar Scalar>
using block_key_store = std::conditional_t<std::is_same_v<Scalar, std::int8_t>, scaled_token_store, token_store<Scalar>>;

template <index_key_scalar Scalar>
    requires(!std::is_same_v<Scalar, std::int8_t>)
[[nodiscard]] FRUGAL_FLAGGED ops::block_key_view<Scalar> view_block_keys(const token_store<Scalar>& keys) noexcept {
    return {keys.chunks(), token_store<Scalar>::chunk_shift, keys.width()};
}
[[nodiscard]] inline ops::block_key_view<std::int8_t> view_block_keys(const scaled_token_store& keys) noexcept {
    return {keys.codes().chunks(), keys.scales().chunks(), token_store<std::int8_t>::chunk_shift, keys.width()};
}

}  // namespace attention

FRUGAL_NAMESPACE_END

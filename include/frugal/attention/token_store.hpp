#pragma once
/// Rows of scalars, one a token (or block) of a sequence, in chunks that snapshots and copies share until one of them writes.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/attention/chunk_arena.hpp"
#include "frugal/core/error.hpp"
#include "frugal/ops/attention/precision.hpp"
#include "frugal/tensor/bytes.hpp"
#include "frugal/tensor/scalar.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// A type of rows of scalars. Signed bytes have no value of their own: what they mean is somebody else's to say.
template <class Scalar>
concept stored_scalar = std::is_same_v<Scalar, float> || std::is_same_v<Scalar, half> || std::is_same_v<Scalar, bfloat16> ||
    std::is_same_v<Scalar, std::int8_t>;

/// Rows 0 … size() - 1 of `width` scalars each, of which the first may have been dropped. Growing never moves a row. Copies
/// are cheap and hold the same values for good: they share the chunks, and a chunk is duplicated when one of its holders is
/// about to write into it. Chunks are cut from slabs, which copies share too: up to as much memory again as bytes() may be spare.
template <stored_scalar Scalar>
class FRUGAL_FLAGGED token_store {
public:
    static constexpr std::size_t chunk_shift = 7;
    static constexpr std::size_t chunk_rows = static_cast<std::size_t>(1) << chunk_shift;

    explicit token_store(std::size_t width = 0) noexcept : width_(width) {}
    token_store(const token_store& other) : width_(other.width_), size_(other.size_), first_(other.first_) { share(other); }
    token_store& operator=(const token_store& other) {
        if (this == &other) return *this;
        width_ = other.width_;
        size_ = other.size_;
        first_ = other.first_;
        share(other);
        return *this;
    }
    token_store(token_store&& other) noexcept
        : width_(other.width_),
          size_(std::exchange(other.size_, 0)),
          first_(std::exchange(other.first_, 0)),
          arena_(std::move(other.arena_)),
          chunks_(std::move(other.chunks_)),
          starts_(std::move(other.starts_)) {}
    token_store& operator=(token_store&& other) noexcept {
        width_ = other.width_;
        size_ = std::exchange(other.size_, 0);
        first_ = std::exchange(other.first_, 0);
        arena_ = std::move(other.arena_);
        chunks_ = std::move(other.chunks_);
        starts_ = std::move(other.starts_);
        return *this;
    }
    ~token_store() = default;

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t width() const noexcept { return width_; }
    /// The first row not dropped; at most size().
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// Bytes of chunks held, shared ones included.
    [[nodiscard]] std::size_t bytes() const noexcept {
        const auto held = std::count_if(starts_.begin(), starts_.end(), [](const Scalar* start) { return start != nullptr; });
        return static_cast<std::size_t>(held) * chunk_rows * width_ * sizeof(Scalar);
    }
    /// What kernels read: the start of every chunk.
    [[nodiscard]] const Scalar* const* chunks() const noexcept { return starts_.data(); }
    /// Row first() <= `index` < size(), or a row reserved and already written.
    [[nodiscard]] const Scalar* row(std::size_t index) const noexcept {
        return starts_[index >> chunk_shift] + (index & (chunk_rows - 1)) * width_;
    }

    /// Makes rows size() … size() + count - 1 exist, for this store alone. Their contents are unspecified, but never the
    /// rows of another store. Errors: out_of_memory (nothing changed).
    [[nodiscard]] status reserve(std::size_t count) {
        if (count == 0) return {};
        const std::size_t last = size_ + count - 1;
        for (std::size_t c = size_ >> chunk_shift; c < chunks_.size() && c <= last >> chunk_shift; ++c) {
            if (chunks_[c].use_count() == 1) continue;
            FRUGAL_TRY_ASSIGN(auto fresh, make_chunk());
            const std::size_t used = size_ > c * chunk_rows ? size_ - c * chunk_rows : 0;
            if (used != 0 && starts_[c] != nullptr) std::memcpy(fresh.get(), starts_[c], used * width_ * sizeof(Scalar));
            starts_[c] = fresh.get();
            chunks_[c] = std::move(fresh);
        }
        // A holder that let go just now may have been reading on another thread: see its reads as done before writing.
#if !defined(__SANITIZE_THREAD__)  // of g++, whose ThreadSanitizer refuses fences; clang's knows them
        std::atomic_thread_fence(std::memory_order_acquire);
#endif
        while (chunks_.size() <= last >> chunk_shift) {
            FRUGAL_TRY_ASSIGN(auto fresh, make_chunk());
            starts_.push_back(fresh.get());
            chunks_.push_back(std::move(fresh));
        }
        return {};
    }
    /// A reserved row, to be filled. Different rows may be filled at once.
    [[nodiscard]] Scalar* reserved_row(std::size_t index) noexcept {
        return chunks_[index >> chunk_shift].get() + (index & (chunk_rows - 1)) * width_;
    }
    /// Fills a reserved row from floats; see ops::round_for_cache.
    void write(std::size_t index, const float* values) noexcept requires(!std::is_same_v<Scalar, std::int8_t>) {
        Scalar* to = reserved_row(index);
        if constexpr (std::is_same_v<Scalar, float>) {
            std::memcpy(to, values, width_ * sizeof(float));
        } else {
            for (std::size_t i = 0; i < width_; ++i) to[i] = ops::round_for_cache<Scalar>(values[i]);
        }
    }
    /// Makes `count` written rows part of the store.
    void commit(std::size_t count) noexcept { size_ += count; }
    /// Forgets all but the first `size` rows; their room is kept.
    void truncate(std::size_t size) noexcept {
        size_ = size < size_ ? size : size_;
        first_ = size_ < first_ ? size_ : first_;
    }
    /// Drops the rows before `row` <= size(). The others keep their indices; chunks of dropped rows alone are let go.
    void drop_before(std::size_t row) noexcept {
        if (row <= first_) return;
        for (std::size_t c = first_ >> chunk_shift; c < row >> chunk_shift; ++c) {
            chunks_[c].reset();
            starts_[c] = nullptr;
        }
        first_ = row;
    }

    /// The rows not dropped, without gaps.
    void save(byte_writer& out) const {
        for (std::size_t r = first_; r < size_; ++r) out.write_span(std::span<const Scalar>(row(r), width_));
    }
    /// A store of rows `first` … `size` - 1 as saved; those before count as dropped. The bytes left are checked before memory is
    /// taken for rows; what `size` may be is the caller's to check.
    [[nodiscard]] static result<token_store> load(byte_reader& in, std::size_t width, std::size_t size, std::size_t first = 0) {
        const std::size_t row_bytes = sizeof(std::uint64_t) + width * sizeof(Scalar);
        if (size < first || size - first > in.remaining() / row_bytes)
            return fail(errc::malformed_file, "saved state of rows ", first, " to ", size, ", of ", row_bytes,
                        " bytes each, ends after ", in.remaining(), " bytes");
        token_store out(width);
        out.size_ = out.first_ = first;
        // A chunk for every row there has been, also for one that was dropped from a chunk of which nothing is left: copies take
        // so many.
        out.chunks_.resize(chunks_for(first));
        out.starts_.resize(chunks_for(first));
        FRUGAL_TRY(out.reserve(size - first));
        for (std::size_t r = first; r < size; ++r) FRUGAL_TRY(in.read_span(std::span<Scalar>(out.reserved_row(r), width)));
        out.commit(size - first);
        return out;
    }

private:
    [[nodiscard]] static constexpr std::size_t chunks_for(std::size_t rows) noexcept {
        return (rows >> chunk_shift) + ((rows & (chunk_rows - 1)) != 0 ? 1 : 0);
    }
    [[nodiscard]] result<std::shared_ptr<Scalar>> make_chunk() {
        if (arena_ == nullptr) arena_ = std::make_shared<chunk_arena>(chunk_rows * width_ * sizeof(Scalar));
        FRUGAL_TRY_ASSIGN(const auto memory, arena_->take());
        return std::shared_ptr<Scalar>(memory, reinterpret_cast<Scalar*>(memory.get()));
    }
    /// Takes the chunks of `other` that hold rows; spare ones stay with it.
    void share(const token_store& other) {
        const auto held = static_cast<std::ptrdiff_t>(chunks_for(other.size_));
        arena_ = other.arena_;
        chunks_.assign(other.chunks_.begin(), other.chunks_.begin() + held);
        starts_.assign(other.starts_.begin(), other.starts_.begin() + held);
    }

    std::size_t width_ = 0, size_ = 0, first_ = 0;
    std::shared_ptr<chunk_arena> arena_;           // null until the first chunk
    std::vector<std::shared_ptr<Scalar>> chunks_;  // at least chunks_for(size_); null where all rows are dropped
    std::vector<const Scalar*> starts_;            // of the chunks
};

}  // namespace attention

FRUGAL_NAMESPACE_END

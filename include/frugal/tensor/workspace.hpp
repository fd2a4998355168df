#pragma once
/// Scratch memory of a forward pass: a stack of blocks that grows once and is reused for every later call.
#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/tensor/buffer.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

/// Not thread-safe: one workspace for each forward pass in flight. Contents of fresh scratch are unspecified.
class FRUGAL_FLAGGED workspace {
    static constexpr std::size_t granule = 16;  // floats in 64 bytes

public:
    /// Releases, when it goes out of scope, all that was taken since it was made.
    class scope {
    public:
        explicit scope(workspace& owner) noexcept : owner_(owner), block_(owner.block_), used_(owner.used_) {}
        scope(const scope&) = delete;
        scope& operator=(const scope&) = delete;
        ~scope() {
            owner_.block_ = block_;
            owner_.used_ = used_;
        }

    private:
        workspace& owner_;
        std::size_t block_, used_;
    };

    /// A matrix of floats, rows contiguous, start aligned to 64 bytes. Errors: out_of_memory.
    [[nodiscard]] result<matrix_view<float>> matrix(std::size_t rows, std::size_t cols) {
        if (cols != 0 && rows > max_floats / cols)
            return fail(errc::out_of_memory, "scratch of ", rows, " x ", cols, " floats is beyond the address space");
        FRUGAL_TRY_ASSIGN(float* data, floats(rows * cols));
        return matrix_view<float>(data, rows, cols);
    }

    /// `count` floats. Errors: out_of_memory.
    [[nodiscard]] result<float*> floats(std::size_t count) {
        if (count > max_floats) return fail(errc::out_of_memory, "scratch of ", count, " floats is beyond the address space");
        const std::size_t need = (count + granule - 1) / granule * granule;
        while (block_ < blocks_.size() && blocks_[block_].size() - used_ < need) {
            ++block_;
            used_ = 0;
        }
        if (block_ == blocks_.size()) {
            FRUGAL_TRY_ASSIGN(auto fresh, buffer<float>::allocate((std::max)(need, least_block)));
            blocks_.push_back(std::move(fresh));
            used_ = 0;
        }
        float* data = blocks_[block_].data() + used_;
        used_ += need;
        return data;
    }

    /// `count` elements of T, start aligned to 64 bytes. Errors: out_of_memory.
    template <class T>
        requires(std::is_trivially_copyable_v<T> && alignof(T) <= granule * sizeof(float))
    [[nodiscard]] result<std::span<T>> array(std::size_t count) {
        if (count > max_floats / sizeof(T))
            return fail(errc::out_of_memory, "scratch of ", count, " elements is beyond the address space");
        FRUGAL_TRY_ASSIGN(float* data, floats((count * sizeof(T) + sizeof(float) - 1) / sizeof(float)));
        return std::span<T>(reinterpret_cast<T*>(data), count);
    }

    /// Bytes held.
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = 0;
        for (const auto& block : blocks_) sum += block.size() * sizeof(float);
        return sum;
    }

private:
    static constexpr std::size_t least_block = 1u << 18;  // 1 MiB
    static constexpr std::size_t max_floats = static_cast<std::size_t>(1) << 60;

    std::vector<buffer<float>> blocks_;
    std::size_t block_ = 0, used_ = 0;
};

FRUGAL_NAMESPACE_END

#pragma once
/// Owning, cache-line aligned storage whose allocation can fail without throwing.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "frugal/core/error.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

FRUGAL_NAMESPACE_BEGIN

/// `size` trivially copyable elements, 64-byte aligned, zero at first. Move-only. Large ones lie in huge pages where the system
/// has them: weights are read once a token, and a page table walk for every 4 KiB takes up to a fifth of the bandwidth.
template <class T>
class FRUGAL_FLAGGED buffer {
    static_assert(std::is_trivially_copyable_v<T>, "frugal: buffer<T> holds trivially copyable elements only");

public:
    static constexpr std::size_t alignment = 64;

    buffer() noexcept = default;
    buffer(const buffer&) = delete;
    buffer& operator=(const buffer&) = delete;
    buffer(buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    buffer& operator=(buffer&& other) noexcept {
        if (this != &other) {
            std::free(data_);
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    ~buffer() { std::free(data_); }

    /// Errors: out_of_memory.
    [[nodiscard]] static result<buffer> allocate(std::size_t size) {
        buffer out;
        if (size == 0) return result<buffer>(std::move(out));  // written out for nvcc 13, which would copy
        if (size > ((std::numeric_limits<std::size_t>::max)() - alignment) / sizeof(T))
            return fail(errc::out_of_memory, "buffer of ", size, " elements is beyond the address space");
        const std::size_t bytes = (size * sizeof(T) + alignment - 1) / alignment * alignment;
#if defined(MADV_HUGEPAGE)
        // Not aligned_alloc, which would have the length rounded up as well.
        void* found = nullptr;
        if (::posix_memalign(&found, bytes < huge_page ? alignment : huge_page, bytes) == 0) out.data_ = static_cast<T*>(found);
        if (found != nullptr && bytes >= huge_page)
            (void)::madvise(found, bytes, MADV_HUGEPAGE);  // a wish: its failure changes no result
#else
        out.data_ = static_cast<T*>(std::aligned_alloc(alignment, bytes));
#endif
        if (out.data_ == nullptr) return fail(errc::out_of_memory, "cannot allocate ", bytes, " bytes");
        out.size_ = size;
        std::memset(static_cast<void*>(out.data_), 0, size * sizeof(T));
        return result<buffer>(std::move(out));
    }

    [[nodiscard]] T* data() noexcept { return data_; }
    [[nodiscard]] const T* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::span<T> span() noexcept { return {data_, size_}; }
    [[nodiscard]] std::span<const T> span() const noexcept { return {data_, size_}; }
    [[nodiscard]] T& operator[](std::size_t i) noexcept { return data_[i]; }
    [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return data_[i]; }

private:
    static constexpr std::size_t huge_page = std::size_t{2} << 20;

    T* data_ = nullptr;
    std::size_t size_ = 0;
};

FRUGAL_NAMESPACE_END

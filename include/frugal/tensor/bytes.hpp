#pragma once
/// Flat binary encoding of states: little-endian, lengths before contents, every read checked.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

static_assert(std::endian::native == std::endian::little, "frugal: file and state formats are little-endian");

/// Appends values to a growing vector of bytes.
class FRUGAL_FLAGGED byte_writer {
public:
    template <class T>
        requires std::is_trivially_copyable_v<T>
    void write(const T& value) {
        append(&value, sizeof(T));
    }
    /// Length (u64), then the elements.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    void write_span(std::span<const T> values) {
        write(static_cast<std::uint64_t>(values.size()));
        if (!values.empty()) append(values.data(), values.size_bytes());
    }
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::vector<std::byte> take() && noexcept { return std::move(bytes_); }

private:
    // Not insert(): gcc 12 reports an overflow there that cannot happen.
    void append(const void* from, std::size_t size) {
        const std::size_t at = bytes_.size();
        bytes_.resize(at + size);
        std::memcpy(bytes_.data() + at, from, size);
    }
    std::vector<std::byte> bytes_;
};

/// Reads what byte_writer wrote. Every read past the end is a malformed_file error that names the offset.
class FRUGAL_FLAGGED byte_reader {
public:
    explicit byte_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    template <class T>
        requires std::is_trivially_copyable_v<T>
    [[nodiscard]] status read(T& value) {
        if (bytes_.size() - offset_ < sizeof(T)) return past_end(sizeof(T));
        std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
        offset_ += sizeof(T);
        return {};
    }
    /// Fills exactly `out`; a stored length that differs is a shape_mismatch.
    template <class T>
        requires(std::is_trivially_copyable_v<T> && !std::is_const_v<T>)
    [[nodiscard]] status read_span(std::span<T> out) {
        std::uint64_t size = 0;
        FRUGAL_TRY(read(size));
        if (size != out.size())
            return fail(errc::shape_mismatch, "saved state holds ", size, " elements where ", out.size(), " belong");
        if (bytes_.size() - offset_ < out.size_bytes()) return past_end(out.size_bytes());
        if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset_, out.size_bytes());
        offset_ += out.size_bytes();
        return {};
    }
    [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
    [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - offset_; }

private:
    [[nodiscard]] error past_end(std::size_t need) const {
        return fail(errc::malformed_file, "saved state ends at byte ", bytes_.size(), "; ", need, " bytes needed at ", offset_);
    }
    std::span<const std::byte> bytes_;
    std::size_t offset_ = 0;
};

FRUGAL_NAMESPACE_END

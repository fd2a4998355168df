#pragma once
/// Weights repacked for the CPU: the blocks of a few rows lie next to each other, so that a product of those rows reads one
/// stream of memory.
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/buffer.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace quant {

/// One matrix in groups of `group` rows: block 0 of the group's rows one after the other, then block 1, … Rows that the last
/// group lacks are zero bytes.
struct interleaved_view {
    static constexpr std::size_t group = 4;

    type_id type{};
    const std::byte* data = nullptr;
    std::size_t rows = 0, cols = 0, row_bytes = 0;  ///< row_bytes: of one row, without gap

    [[nodiscard]] std::size_t groups() const noexcept { return (rows + group - 1) / group; }
    [[nodiscard]] std::size_t bytes() const noexcept { return groups() * group * row_bytes; }
    /// Where a group starts.
    [[nodiscard]] const std::byte* group_data(std::size_t g) const noexcept { return data + g * group * row_bytes; }
};

/// Owns one or more interleaved matrices. Move-only.
class interleaved_weights {
public:
    /// Repacks matrices, which may differ in format. Errors: those of check_weight_view; out_of_memory.
    template <format_list Formats>
    [[nodiscard]] static result<interleaved_weights> pack(std::span<const weight_view> parts) {
        std::size_t bytes = 0;
        for (const weight_view& w : parts) {
            FRUGAL_TRY(check_weight_view<Formats>(w));
            FRUGAL_TRY_ASSIGN(const std::size_t row, row_bytes<Formats>(w.type, w.cols));
            if (row != 0 && w.rows > (std::numeric_limits<std::size_t>::max() / 2 - bytes) / row - interleaved_view::group)
                return fail(errc::out_of_memory, "weights [", w.rows, ", ", w.cols, "] are beyond the address space");
            bytes += interleaved_view{w.type, nullptr, w.rows, w.cols, row}.bytes();
        }
        interleaved_weights out;
        FRUGAL_TRY_ASSIGN(out.memory_, buffer<std::byte>::allocate(bytes));
        std::byte* to = out.memory_.data();
        for (const weight_view& w : parts) {
            FRUGAL_TRY_ASSIGN(const std::size_t row, row_bytes<Formats>(w.type, w.cols));
            const interleaved_view made{w.type, to, w.rows, w.cols, row};
            FRUGAL_TRY(visit<Formats>(w.type, [&]<class Format>(type_tag<Format>) { interleave<Format>(w, to); }));
            to += made.bytes();
            out.parts_.push_back(made);
        }
        return out;
    }

    [[nodiscard]] std::span<const interleaved_view> parts() const noexcept { return parts_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return memory_.size(); }

private:
    template <class Format>
    static void interleave(const weight_view& w, std::byte* to) noexcept {
        constexpr std::size_t group = interleaved_view::group, block = Format::block_bytes;
        const std::size_t blocks = w.cols / Format::block_size;
        for (std::size_t r = 0; r < w.rows; ++r) {
            std::byte* row = to + (r / group * group * blocks + r % group) * block;
            for (std::size_t b = 0; b < blocks; ++b) std::memcpy(row + b * group * block, w.row(r) + b * block, block);
        }
    }

    buffer<std::byte> memory_;
    std::vector<interleaved_view> parts_;
};

}  // namespace quant

FRUGAL_NAMESPACE_END

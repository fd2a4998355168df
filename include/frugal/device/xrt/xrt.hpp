#pragma once
/// AMD NPUs through XRT as a device target: weights stay on the device in tiles, activations go there for each product. Every
/// other operator runs on the host CPU. Needs XRT and exceptions (link frugal::xrt); errors are still returned.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/host_side.hpp"
#include "frugal/device/image.hpp"
#include "frugal/device/xrt/options.hpp"
#include "frugal/device/xrt/session.hpp"
#include "frugal/quant/q4nx.hpp"
#include "frugal/quant/tiles.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// An NPU with a program that multiplies with tiles of TileFormat, and the host CPU beside it. Move-only; one call at a time.
///
/// Products: activations are rounded to bfloat16, weights are what the tiles hold, results are f32 sums in the order of the
/// device program. Each row of a launch is computed by itself, so the bits do not depend on how tokens are batched.
///
/// Errors of the device: `device_failed` leaves it usable; after `device_lost` every image is gone, `generation()` has changed,
/// and nothing but `reopen()` helps.
template <cpu_target Host = cpu<>, quant::tile_format TileFormat = quant::q4nx<>>
class FRUGAL_FLAGGED xrt : public host_side<Host> {
public:
    using host_side<Host>::concurrency;
    using host_side<Host>::counters;
    using host_side<Host>::run;
    using tile_format = TileFormat;
    using image = xrt_image;
    using source = matrix_view<const float>;
    static constexpr std::string_view name = "xrt";

    /// Opens device `index` and loads its program. `host` are the arguments of the host CPU device, such as an executor.
    /// Errors: device_failed (no such device, or it refused), invalid_argument, io, malformed_file (no whole xclbin), unsupported
    /// (an xclbin for other tiles or with another id, a kernel with other arguments), not_found (no kernel of that name),
    /// out_of_memory, device_lost.
    template <class... HostArgument>
    [[nodiscard]] static result<xrt> open(unsigned index, xrt_options options, HostArgument&&... host) {
        xrt out(index, std::move(options), std::make_unique<Host>(std::forward<HostArgument>(host)...));
        FRUGAL_TRY(out.reopen());
        return out;
    }

    /// Closes the device and opens it anew, with the same options. Every image of it is lost. Errors: as open().
    [[nodiscard]] status reopen() {
        session_.reset();
        generation_ = next_generation();
        FRUGAL_TRY_ASSIGN(session_, detail::xrt_session::open(index_, options_, tile_name(), generation_));
        return {};
    }

    /// A process-wide number: no two devices, and no two openings of one, ever have the same.
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }
    /// Whether the device is gone: only reopen() helps.
    [[nodiscard]] bool lost() const noexcept { return session_ == nullptr; }
    /// Tokens that the device program computes in one launch. 0 when the device is lost.
    [[nodiscard]] std::size_t tokens_per_launch() const noexcept { return session_ ? session_->tag().tokens : 0; }
    /// What the tag of a device program must say about tiles: name:ROWSxCOLUMNS:BYTES.
    [[nodiscard]] static std::string tile_name() {
        return concat(std::string_view(TileFormat::name), ':', std::size_t{TileFormat::tile_rows}, 'x',
                      std::size_t{TileFormat::tile_cols}, ':', std::size_t{TileFormat::tile_bytes});
    }

    /// Packs matrices, stacked by rows, into tiles on the device. An error leaves nothing allocated.
    /// Errors: shape_mismatch (no rows or columns, unequal columns), not_finite (a weight), unsupported (no device program for
    /// this shape), out_of_memory (the device is full), device_failed (the upload), device_lost.
    [[nodiscard]] result<image> pack(std::span<const source> parts) {
        if (lost()) return gone();
        std::vector<std::size_t> rows;
        std::size_t all = 0;
        for (const source& part : parts) {
            if (part.rows() > (std::numeric_limits<std::uint32_t>::max)() - all || part.cols() != parts.front().cols())
                return fail(errc::shape_mismatch, "cannot stack a part [", part.rows(), ", ", part.cols(), "] on ", all,
                            " rows of ", parts.front().cols(), " columns");
            rows.push_back(part.rows());
            all += part.rows();
        }
        const std::size_t cols = parts.empty() ? 0 : parts.front().cols();
        if (all == 0 || cols == 0) return fail(errc::shape_mismatch, "a weight image needs rows and columns");
        using tiles = quant::packed_tiles<TileFormat>;
        const std::size_t bytes = tiles::bytes(all, cols);
        if (bytes > (std::numeric_limits<std::size_t>::max)() / 2)
            return fail(errc::out_of_memory, "a matrix [", all, ", ", cols, "] is beyond the address space");
        const detail::xrt_shape shape{tiles::row_tiles(all) * TileFormat::tile_rows,
                                      tiles::col_tiles(cols) * TileFormat::tile_cols};
        auto made = noticing(session_->pack(shape, std::move(rows), cols, bytes,
                                            [&](std::span<std::byte> out) { return encode(parts, tiles::row_tiles(all), out); }));
        if (made) {
            counters().add(counter::images_packed, 1);
            counters().add(counter::image_bytes_uploaded, bytes);
        }
        return made;
    }

    /// y[i] = x times part i of the image: see image_target. The workspace is not used.
    /// Errors: shape_mismatch, device_failed, device_lost (also for an image of an earlier generation or of another device).
    [[nodiscard]] status multiply(workspace&, const image& w, matrix_view<const float> x, std::span<const matrix_view<float>> y) {
        if (lost()) return gone();
        if (w.generation() != generation_)
            return fail(errc::device_lost, "a weight image of generation ", w.generation(), " on a device of generation ",
                        generation_, ": pack it again");
        FRUGAL_TRY(check_image_product(
            w.rows().size(), w.cols(), [&](std::size_t i) { return w.rows()[i]; }, x, y));
        if (x.rows() == 0) return {};
        FRUGAL_TRY(noticing(session_->multiply(w, x, y)));
        counters().add(counter::image_products, 1);
        return {};
    }

private:
    xrt(unsigned index, xrt_options options, std::unique_ptr<Host> host)
        : host_side<Host>(std::move(host)), index_(index), options_(std::move(options)) {}

    [[nodiscard]] static std::uint64_t next_generation() noexcept {
        return detail::xrt_generations.fetch_add(1, std::memory_order_relaxed) + 1;
    }

    /// Rows of tiles on all threads of the host.
    [[nodiscard]] status encode(std::span<const source> parts, std::size_t row_tiles, std::span<std::byte> out) const {
        const std::size_t tasks = (std::min)(row_tiles, std::max<std::size_t>(1, concurrency()));
        std::vector<status> done(tasks);
        const auto one = [&](std::size_t task) {
            const std::size_t begin = row_tiles * task / tasks, end = row_tiles * (task + 1) / tasks;
            done[task] = quant::pack_tiles<TileFormat>(parts, out, quant::tile_row_range{begin, end - begin});
        };
        run(tasks, one);
        for (status& each : done) FRUGAL_TRY(std::move(each));
        return {};
    }

    [[nodiscard]] error gone() const { return fail(errc::device_lost, "XRT device ", index_, " is lost; reopen() it"); }

    /// Drops what is left of a device that turned out to be lost.
    template <class Outcome>
    [[nodiscard]] Outcome noticing(Outcome outcome) {
        if (!outcome && outcome.error().code == errc::device_lost) {
            session_.reset();
            generation_ = next_generation();
        }
        return outcome;
    }

    unsigned index_;
    xrt_options options_;
    std::unique_ptr<detail::xrt_session> session_;
    std::uint64_t generation_ = 0;
};

static_assert(image_target<xrt<>>, "frugal: device::xrt must model device::image_target");

}  // namespace device

FRUGAL_NAMESPACE_END

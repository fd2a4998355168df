#pragma once
/// Host copies of a layer's weights: filled only where a reader of the step will read them, reachable only by those readers.
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/reuse/weights/reader_table.hpp"
#include "frugal/reuse/weights/residency.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What a host buffer holds. `poison()` makes what is in it unfit to be read, so that a read of unloaded data shows.
template <class C>
concept host_content = std::default_initializable<C> && requires(C& content) {
    content.poison();
};

/// Whether skipped buffers are poisoned: for tests and checked builds.
struct FRUGAL_FLAGGED unpoisoned {
    static constexpr bool poisons = false;
};
struct FRUGAL_FLAGGED poisoned {
    static constexpr bool poisons = true;
};
/// Define FRUGAL_CHECKED for the whole of a program to have the weight stores of its models poison what they skip.
#if defined(FRUGAL_CHECKED)
using default_poisoning = poisoned;
#else
using default_poisoning = unpoisoned;
#endif

/// Counts a host weight that was prepared by writing `bytes` bytes; 0: it was taken where it lies.
template <counter_policy Counters>
void count_load(Counters& counters, std::size_t bytes) noexcept {
    if (bytes != 0) counters.add(counter::dequantize_calls, 1);
    counters.add(counter::dequantized_bytes, bytes);
}

/// One host buffer for each buffer of `Table`, reused by all layers of its kind. Of one thread: a worker has its own.
template <class Table, host_content Content, weight_loading_policy Loading = default_weight_loading,
          counter_policy Counters = counters_off, class Poisoning = unpoisoned>
class FRUGAL_FLAGGED host_buffers {
public:
    using table = Table;
    using content = Content;

    [[nodiscard]] Counters& counters() noexcept { return counters_; }
    [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

    /// Fills what the step's readers read (reload_always: everything). `load(constant<B>{}, Content&) -> result<std::size_t>`
    /// fills buffer B for the lease's layer and returns the bytes it wrote. What already holds these weights is left as it
    /// is. Errors: those of `load`; the buffer it failed for holds nothing then, and the step may be tried again.
    template <class Image, class Load>
    [[nodiscard]] status load(const lease<Image>& step, Load&& load) {
        status done;
        std::uint64_t skipped = 0;
        Table::for_each_buffer([&]<auto B>(constant<B> id) {
            if (!done) return;
            cell& to = cells_[Table::template index_of<B>()];
            if (Loading::skips_resident && Table::template skip<B>(step.settled(), step.modes())) {
                ++skipped;
                if constexpr (Poisoning::poisons) {
                    to.holds = {};
                    to.data.poison();
                }
                return;
            }
            if (Loading::skips_resident && to.holds == step.now()) return;
            to.holds = {};
            result<std::size_t> written = load(id, to.data);
            if (!written) {
                done = std::move(written).error();
                return;
            }
            count_load(counters_, *written);
            to.holds = step.now();
        });
        if (skipped != 0) counters_.add(counter::loads_skipped, skipped);
        return done;
    }

    /// Runs a reader of the table, or nothing if its condition does not hold.
    /// - packs: `f(const Content&...) -> result<Image>` is called for every device that lacks the image (with the device's
    ///   number first, if it takes one) and the result becomes the device's image;
    /// - reads_on_host: `f(const Content&...) -> status` is called if the mode is on.
    /// Errors: those of `f` and lease::put; invalid_argument if a buffer does not hold the weights of the lease's layer and
    /// version, whatever the build: `f` is not called then.
    template <class Reader, class Image, class F>
    [[nodiscard]] status run(lease<Image>& step, F&& f) {
        static_assert(Table::template has_reader<Reader>,
                      "frugal: this reader is not in the layer's reader table; declare it there, so that what it reads is "
                      "loaded");
        if constexpr (Reader::mode != 0) {
            if ((step.modes() & Reader::mode) == 0) return {};
            return call(step, f, typename Reader::reads{});
        } else {
            if ((step.settled() & Reader::image) != 0) return {};
            constexpr auto image = static_cast<std::size_t>(Reader::id);
            for (std::size_t device = 0; device < step.devices(); ++device) {
                if (!step.lacks(device, image)) continue;
                FRUGAL_TRY_ASSIGN(Image made, call(step, for_device(f, device), typename Reader::reads{}));
                counters_.add(counter::images_packed, 1);
                counters_.add(counter::image_bytes_uploaded, made.bytes());
                FRUGAL_TRY(step.put(device, image, std::move(made)));
            }
            return {};
        }
    }

private:
    struct cell {
        stamp holds;
        Content data;
    };

    template <class F>
    [[nodiscard]] static auto for_device(F& f, std::size_t device) {
        return [&f, device](const auto&... data) {
            if constexpr (std::is_invocable_v<F&, decltype(data)...>)
                return f(data...);
            else
                return f(device, data...);
        };
    }
    template <class Image, class F, auto... B>
    [[nodiscard]] auto call(const lease<Image>& step, F&& f, buffers<B...>) {
        using outcome = decltype(f(std::as_const(cells_[Table::template index_of<B>()].data)...));
        bool current = true;
        ((current = current && cells_[Table::template index_of<B>()].holds == step.now()), ...);
        if (!current)
            return outcome(fail(errc::invalid_argument, "a reader of layer ", step.now().layer,
                                " wants weights that were not loaded in this step, or not of this version"));
        return f(std::as_const(cells_[Table::template index_of<B>()].data)...);
    }

    std::array<cell, Table::size> cells_;
    [[no_unique_address]] Counters counters_;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

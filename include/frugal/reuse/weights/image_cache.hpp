#pragma once
/// Images whose choice depends on the token (routed experts): the most recently used ones within a byte budget.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/weights/residency.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// Images numbered 0 … count - 1. Of one thread.
template <class Image>
class FRUGAL_FLAGGED image_cache {
public:
    image_cache(std::size_t count, std::size_t byte_budget) : entries_(count), budget_(byte_budget), limit_(byte_budget) {}

    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t evictions() const noexcept { return evictions_; }
    [[nodiscard]] bool holds(std::size_t key) const noexcept { return entries_[key].image.has_value(); }

    /// Drops everything if the weights or the device are not those of the last call.
    void validate(weight_version version, std::uint64_t generation) {
        if (version == version_ && generation == generation_) return;
        clear();
        version_ = version;
        generation_ = generation;
    }

    /// Image `key`, made by `make() -> result<Image>` if it is not here; valid until a later call drops it. The images unused
    /// for longest are dropped until `bytes` more fit, and further ones while `make` says that the device is full. What a full
    /// device holds is the budget from then on, so that it is not asked in vain again, until clear() or retry().
    /// `before_drop()` is called before any is dropped, so that what was begun with earlier images can be finished.
    /// Errors: out_of_memory (bytes > budget), those of `make`; nothing but those dropped images is lost then.
    template <class Make, class BeforeDrop>
    [[nodiscard]] result<const Image*> get(std::size_t key, std::size_t bytes, Make&& make, BeforeDrop&& before_drop) {
        entry& wanted = entries_[key];
        if (wanted.image) {
            unlink(key);
            link_newest(key);
            return &*wanted.image;
        }
        if (bytes > limit_)
            return fail(errc::out_of_memory, "an image of ", bytes, " bytes exceeds the ", limit_, " bytes that there are");
        while (bytes_ > limit_ - bytes) evict_oldest(before_drop);
        for (;;) {
            result<Image> made = make();
            if (made) {
                bytes_ += made->bytes();
                wanted.image.emplace(std::move(*made));
                link_newest(key);
                return &*wanted.image;
            }
            if (made.error().code != errc::out_of_memory) return std::move(made).error();
            limit_ = bytes_;
            if (oldest_ == none) return std::move(made).error();
            evict_oldest(before_drop);
        }
    }
    /// The same where nothing was begun that needs earlier images.
    template <class Make>
    [[nodiscard]] result<const Image*> get(std::size_t key, std::size_t bytes, Make&& make) {
        return get(key, bytes, std::forward<Make>(make), [] {});
    }

    /// Makes image `key` ahead of its use, if it is not here and there is room for it: nothing is dropped. `bytes`: of the image,
    /// 0 if that is not known. Returns whether it is here. Errors: those of `make`, but for out_of_memory.
    template <class Make>
    [[nodiscard]] result<bool> fill(std::size_t key, std::size_t bytes, Make&& make) {
        entry& wanted = entries_[key];
        if (wanted.image) return true;
        const std::size_t room = limit_ < bytes_ ? 0 : limit_ - bytes_;
        if (bytes > room || room == 0) return false;
        result<Image> made = make();
        if (!made) {
            if (made.error().code != errc::out_of_memory) return std::move(made).error();
            limit_ = bytes_;  // as in get
            return false;
        }
        if (made->bytes() > room) return false;
        bytes_ += made->bytes();
        wanted.image.emplace(std::move(*made));
        link_newest(key);
        return true;
    }

    /// A device that was full is asked again.
    void retry() noexcept { limit_ = budget_; }

    void clear() {
        retry();
        while (oldest_ != none) drop_oldest();
    }

private:
    static constexpr std::size_t none = (std::numeric_limits<std::size_t>::max)();
    struct entry {
        std::optional<Image> image;
        std::size_t older = none, newer = none;
    };

    void unlink(std::size_t key) noexcept {
        const entry& e = entries_[key];
        (e.older == none ? oldest_ : entries_[e.older].newer) = e.newer;
        (e.newer == none ? newest_ : entries_[e.newer].older) = e.older;
    }
    void link_newest(std::size_t key) noexcept {
        entries_[key].older = newest_;
        entries_[key].newer = none;
        (newest_ == none ? oldest_ : entries_[newest_].newer) = key;
        newest_ = key;
    }
    void drop_oldest() {
        const std::size_t key = oldest_;
        unlink(key);
        bytes_ -= entries_[key].image->bytes();
        entries_[key].image.reset();
    }
    template <class BeforeDrop>
    void evict_oldest(BeforeDrop& before_drop) {
        before_drop();
        drop_oldest();
        ++evictions_;
    }

    std::vector<entry> entries_;
    std::size_t oldest_ = none, newest_ = none;
    std::size_t bytes_ = 0, budget_, limit_, evictions_ = 0;
    weight_version version_ = weight_version::none;
    std::uint64_t generation_ = 0;
};

}  // namespace reuse

FRUGAL_NAMESPACE_END

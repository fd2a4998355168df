#pragma once
/// Equal chunks cut from slabs of memory: what grows by small chunks lies in huge pages all the same.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/tensor/buffer.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// Chunks of one size. Slabs grow with what is held, up to a huge page, so as they fill at most half of their memory is spare. A
/// slab lives while one of its chunks does, and the newest with the arena: a chunk taken and let go by turns takes no new memory.
/// Any thread may take a chunk and let go of one.
class FRUGAL_FLAGGED chunk_arena {
public:
    /// `bytes`: of a chunk.
    explicit chunk_arena(std::size_t bytes) noexcept
        : bytes_(bytes == 0                                    ? line
                 : bytes > static_cast<std::size_t>(-1) - line ? bytes
                                                               : (bytes + line - 1) / line * line) {}

    /// A chunk of zeros on the border of a cache line. It may outlive the arena; letting go of it gives it back to its slab.
    /// Errors: out_of_memory.
    [[nodiscard]] result<std::shared_ptr<std::byte>> take() {
        const std::lock_guard guard(mutex_);
        std::size_t held = 0;
        // The newest first; slabs whose last chunk has gone are forgotten on the way.
        for (std::size_t i = slabs_.size(); i-- > 0;) {
            const std::shared_ptr<slab> one = slabs_[i].lock();
            if (one == nullptr) {
                slabs_.erase(slabs_.begin() + static_cast<std::ptrdiff_t>(i));
                continue;
            }
            if (std::byte* const chunk = one->take()) return wrap(one, chunk);
            held += one->chunks;
        }
        const std::size_t wanted = std::clamp(held, std::size_t{1}, (std::max)(most_bytes / bytes_, std::size_t{1}));
        auto memory = buffer<std::byte>::allocate(wanted * bytes_);
        const bool enough = static_cast<bool>(memory);
        if (!enough && wanted > 1) memory = buffer<std::byte>::allocate(bytes_);  // where memory is short: what is needed
        FRUGAL_TRY_ASSIGN(auto found, std::move(memory));
        newest_ = std::make_shared<slab>(std::move(found), bytes_, enough ? wanted : 1);
        slabs_.push_back(newest_);
        return wrap(newest_, newest_->take());
    }

    /// Bytes of the slabs that live, spare chunks included.
    [[nodiscard]] std::size_t bytes() const {
        const std::lock_guard guard(mutex_);
        std::size_t sum = 0;
        for (const auto& each : slabs_)
            if (const auto one = each.lock()) sum += one->chunks * bytes_;
        return sum;
    }

private:
    static constexpr std::size_t line = buffer<std::byte>::alignment, most_bytes = std::size_t{2} << 20;

    struct slab {
        slab(buffer<std::byte> room, std::size_t size, std::size_t count) noexcept
            : memory(std::move(room)), bytes(size), chunks(count) {}

        /// Null: none is left.
        [[nodiscard]] std::byte* take() noexcept {
            const std::lock_guard guard(mutex);
            if (returned == nullptr) return cut == chunks ? nullptr : memory.data() + cut++ * bytes;
            std::byte* const chunk = returned;
            std::memcpy(&returned, chunk, sizeof(returned));
            std::memset(chunk, 0, bytes);
            return chunk;
        }
        void give_back(std::byte* chunk) noexcept {
            const std::lock_guard guard(mutex);
            std::memcpy(chunk, &returned, sizeof(returned));
            returned = chunk;
        }

        buffer<std::byte> memory;
        std::size_t bytes, chunks, cut = 0;  // chunks cut so far; those after them are still zero
        std::byte* returned = nullptr;       // a list: each begins with the address of the next
        std::mutex mutex;
    };

    [[nodiscard]] static std::shared_ptr<std::byte> wrap(std::shared_ptr<slab> from, std::byte* chunk) {
        return {chunk, [from = std::move(from)](std::byte* old) noexcept { from->give_back(old); }};
    }

    std::size_t bytes_;
    mutable std::mutex mutex_;
    std::vector<std::weak_ptr<slab>> slabs_;
    std::shared_ptr<slab> newest_;
};

}  // namespace attention

FRUGAL_NAMESPACE_END

#pragma once
/// What layers on a GPU remember of a sequence beyond caches: arrays that change with each token, and how they were before the
/// newest ones.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cuda/pass.hpp"
#include "frugal/device/cuda/room.hpp"
#include "frugal/ops/elementwise/elementwise_cuda.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

/// Which tokens of a step can be taken back from recurrent layers.
struct FRUGAL_FLAGGED cuda_checkpoints {
    const std::uint32_t* visible = nullptr;  ///< of ops::cuda::step_rows
    std::size_t kept = 0;                    ///< of the newest tokens of the step; not more than the states have room for
};

/// Bytes on a device that belong to a saved sequence.
struct FRUGAL_FLAGGED cuda_segment {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool tokens = false;  ///< whole tokens as std::int64_t, which must be in the vocabulary
};
template <class T>
[[nodiscard]] cuda_segment make_segment(T* data, std::size_t count) noexcept {
    return {reinterpret_cast<std::byte*>(data), count * sizeof(T), false};
}

/// An array of one sequence on a device, zeros at first. T: float, std::int64_t.
template <class T>
class FRUGAL_FLAGGED cuda_recurrent_state {
public:
    cuda_recurrent_state() noexcept = default;

    /// `checkpoints`: how many of the newest tokens can be taken back; each takes as much memory as the state. Errors:
    /// out_of_memory, device_failed, device_lost.
    [[nodiscard]] static result<cuda_recurrent_state> create(device::gpu::room& memory, std::size_t size,
                                                             std::size_t checkpoints) {
        cuda_recurrent_state out;
        out.size_ = size;
        out.checkpoints_ = checkpoints;
        FRUGAL_TRY_ASSIGN(out.state_, memory.array<T>(size));
        if (checkpoints != 0) {
            FRUGAL_TRY_ASSIGN(out.before_, memory.array<T>(size * checkpoints));
        }
        return out;
    }

    [[nodiscard]] T* data() const noexcept { return state_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
    [[nodiscard]] cuda_segment segment() const noexcept { return make_segment(state_, size_); }

    /// Queues the tokens of a step by append(first, count), which changes the state: those that can be taken back one by one,
    /// each after a copy of the state.
    template <class Device, class Append>
    [[nodiscard]] status append(device::gpu::pass<Device>& pass, const cuda_checkpoints& newest, std::size_t rows,
                                const Append& append) const {
        const std::size_t others = rows - newest.kept;
        if (others != 0) FRUGAL_TRY(append(std::size_t{0}, others));
        for (std::size_t t = others; t < rows; ++t) {
            FRUGAL_TRY(pass.start([&](cudaStream_t stream) {
                return ops::cuda::keep_before_token<T>(state_, size_, newest.visible + t, before_, checkpoints_, stream);
            }));
            FRUGAL_TRY(append(t, std::size_t{1}));
        }
        return {};
    }
    /// Queues that the state is again as before token number `length`. Precondition: that was kept.
    template <class Device>
    [[nodiscard]] status rollback(device::gpu::pass<Device>& pass, std::size_t length) const {
        return pass.copy(state_, before_ + length % checkpoints_ * size_, bytes());
    }
    /// Queues that the state is zeros.
    template <class Device>
    [[nodiscard]] status clear(device::gpu::pass<Device>& pass) const {
        return pass.zero(state_, bytes());
    }

private:
    T *state_ = nullptr, *before_ = nullptr;  ///< before_: [checkpoints][size], token i in row i modulo checkpoints
    std::size_t size_ = 0, checkpoints_ = 0;
};

}  // namespace attention

FRUGAL_NAMESPACE_END

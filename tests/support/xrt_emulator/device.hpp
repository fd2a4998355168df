#pragma once
/// The emulated device itself: memory, and a worker thread that runs commands in the order they were submitted.
/// Only emulator.cpp includes this; tests use emulator.hpp.
#include <ert.h>
#include <xrt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "xrt_emulator/emulator.hpp"

namespace xrt_core {
class device;
}

namespace xrt_emulator {

class device;

/// What all devices of the process share. Never destroyed: XRT's threads may still run after static destruction has begun.
struct world {
    struct kernel {
        kernel_spec spec;
        std::vector<std::uint32_t> offsets;
        kernel_function function;
    };
    struct armed_fault {
        fault what;
        unsigned seen = 0, failed = 0;
    };

    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const kernel>, std::less<>> kernels;
    std::vector<armed_fault> faults;
    settings set;
    tally count;
    std::string last_fault;
    std::set<device*> open;

    static world& get() {
        static world* one = new world;
        return *one;
    }
    /// The fault that this call runs into, if any.
    std::optional<fault> fails(operation at) {
        const std::lock_guard lock(mutex);
        for (armed_fault& armed : faults) {
            if (armed.what.at != at || armed.seen++ < armed.what.after) continue;
            if (armed.what.times != 0 && armed.failed >= armed.what.times) continue;
            ++armed.failed;
            return armed.what;
        }
        return std::nullopt;
    }
    template <class F>
    void note(F&& f) {
        const std::lock_guard lock(mutex);
        f(count);
    }
    std::shared_ptr<const kernel> find(const std::string& name) {
        const std::lock_guard lock(mutex);
        const auto it = kernels.find(name);
        return it == kernels.end() ? nullptr : it->second;
    }
};

/// Which bytes of a buffer are marked: disjoint ranges, begin -> end.
class byte_ranges {
public:
    void add(std::size_t begin, std::size_t end) {
        if (begin >= end) return;
        auto it = ranges_.upper_bound(begin);
        if (it != ranges_.begin() && std::prev(it)->second >= begin) --it;
        while (it != ranges_.end() && it->first <= end) {
            begin = std::min(begin, it->first);
            end = std::max(end, it->second);
            it = ranges_.erase(it);
        }
        ranges_[begin] = end;
    }
    void remove(std::size_t begin, std::size_t end) {
        std::map<std::size_t, std::size_t> kept;
        for (const auto& [from, to] : ranges_) {
            if (from < std::min(to, begin)) kept[from] = std::min(to, begin);
            if (std::max(from, end) < to) kept[std::max(from, end)] = to;
        }
        ranges_ = std::move(kept);
    }
    /// The first byte of [begin, end) that is not marked; `end` if all are.
    [[nodiscard]] std::size_t first_gap(std::size_t begin, std::size_t end) const {
        const auto it = ranges_.upper_bound(begin);
        if (it == ranges_.begin() || std::prev(it)->second <= begin) return begin < end ? begin : end;
        return std::min(std::prev(it)->second, end);
    }

private:
    std::map<std::size_t, std::size_t> ranges_;
};

struct memory_buffer {
    std::uint64_t address = 0;
    std::size_t size = 0;
    unsigned flags = 0;
    void* host = nullptr;
    std::vector<std::byte> own_host;
    std::vector<std::byte> on_device;
    byte_ranges resident;  // synced to the device since allocation
    byte_ranges fresh;     // synced to the device since a launch took it as input

    [[nodiscard]] bool is_command() const { return (flags & XCL_BO_FLAGS_EXECBUF) != 0; }
};

class device {
public:
    device() {
        {
            const std::lock_guard lock(world::get().mutex);
            world::get().open.insert(this);
        }
        worker_ = std::thread([this] { work(); });
    }
    device(const device&) = delete;
    device& operator=(const device&) = delete;
    ~device() {
        {
            const std::lock_guard lock(world::get().mutex);
            world::get().open.erase(this);
        }
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        worker_.join();
        std::uint64_t live = 0;
        for (const auto& [handle, buffer] : buffers_) live += buffer->is_command() ? 0 : buffer->size;
        world::get().note([&](tally& count) { count.live_bytes -= live; });
    }

    std::shared_ptr<xrt_core::device> core;  // XRT's object for this device

    /// The hardware is reset: see lose_devices().
    void lose() {
        const std::lock_guard lock(mutex_);
        lost_ = true;
        for (auto& [handle, buffer] : buffers_) std::fill(buffer->on_device.begin(), buffer->on_device.end(), unwritten);
        for (auto* list : {&queue_, &hung_}) {
            for (const command& one : *list) finish(one, ERT_CMD_STATE_NORESPONSE);
            list->clear();
        }
        if (running_) end_running_with_ = ERT_CMD_STATE_NORESPONSE;
    }

    xclBufferHandle allocate(std::size_t size, unsigned flags, void* user) {
        auto buffer = std::make_shared<memory_buffer>();
        buffer->size = size;
        buffer->flags = flags;
        const bool is_command = buffer->is_command();
        if (is_lost() || (!is_command && world::get().fails(operation::allocate))) return XRT_NULL_BO;
        try {
            if (user != nullptr) {
                buffer->host = user;
            } else if ((flags & XCL_BO_FLAGS_DEV_ONLY) == 0) {
                buffer->own_host.resize(size + page);
                const auto begin = reinterpret_cast<std::uintptr_t>(buffer->own_host.data());
                buffer->host = reinterpret_cast<void*>((begin + page - 1) / page * page);
            }
            if (!is_command) buffer->on_device.assign(size, unwritten);
        } catch (const std::bad_alloc&) {
            return XRT_NULL_BO;
        }
        if (!is_command) {
            const std::lock_guard lock(world::get().mutex);
            tally& count = world::get().count;
            if (count.live_bytes + size > world::get().set.memory_bytes) return XRT_NULL_BO;
            count.live_bytes += size;
            count.peak_bytes = std::max(count.peak_bytes, count.live_bytes);
            ++count.allocations;
        }
        const std::lock_guard lock(mutex_);
        buffer->address = next_address_;
        next_address_ += (size + page - 1) / page * page + page;  // with a gap, so that an overrun hits nothing
        by_address_[buffer->address] = buffer;
        buffers_[next_handle_] = std::move(buffer);
        return next_handle_++;
    }

    void release(xclBufferHandle handle) {
        const std::lock_guard lock(mutex_);
        const auto it = buffers_.find(handle);
        if (it == buffers_.end()) return;
        const std::uint64_t size = it->second->size;
        if (!it->second->is_command())
            world::get().note([&](tally& count) {
                ++count.frees;
                count.live_bytes -= size;
            });
        by_address_.erase(it->second->address);
        buffers_.erase(it);
    }

    std::shared_ptr<memory_buffer> find(xclBufferHandle handle) {
        const std::lock_guard lock(mutex_);
        const auto it = buffers_.find(handle);
        return it == buffers_.end() ? nullptr : it->second;
    }

    int sync(xclBufferHandle handle, xclBOSyncDirection direction, std::size_t size, std::size_t offset) {
        const bool to = direction == XCL_BO_SYNC_BO_TO_DEVICE;
        if (is_lost()) return -ENODEV;
        if (const auto broken = world::get().fails(to ? operation::sync_to_device : operation::sync_from_device))
            return -broken->error;
        const auto buffer = find(handle);
        if (!buffer || buffer->host == nullptr || offset > buffer->size || size > buffer->size - offset) return -EINVAL;
        const std::lock_guard lock(mutex_);
        std::byte* const host = static_cast<std::byte*>(buffer->host) + offset;
        std::byte* const own = buffer->on_device.data() + offset;
        if (to) {
            std::memcpy(own, host, size);
            buffer->resident.add(offset, offset + size);
            buffer->fresh.add(offset, offset + size);
        } else {
            std::memcpy(host, own, size);
        }
        world::get().note([&](tally& count) {
            (to ? count.syncs_to : count.syncs_from) += 1;
            (to ? count.bytes_to : count.bytes_from) += size;
        });
        return 0;
    }

    int copy(xclBufferHandle to, xclBufferHandle from, std::size_t size, std::size_t to_offset, std::size_t from_offset) {
        const auto target = find(to), source = find(from);
        if (!target || !source || to_offset + size > target->on_device.size() || from_offset + size > source->on_device.size())
            return -EINVAL;
        const std::lock_guard lock(mutex_);
        std::memmove(target->on_device.data() + to_offset, source->on_device.data() + from_offset, size);
        target->resident.add(to_offset, to_offset + size);
        target->fresh.add(to_offset, to_offset + size);
        return 0;
    }

    /// Refuses what is no binary, what reaches beyond its own end, and kernels that nothing here can run.
    int load(const axlf* top) {
        if (is_lost()) return -ENODEV;
        if (const auto broken = world::get().fails(operation::load_binary)) return -broken->error;
        if (std::memcmp(top->m_magic, "xclbin2", 7) != 0) return -EINVAL;
        for (std::uint32_t i = 0; i < top->m_header.m_numSections; ++i) {
            const axlf_section_header& section = top->m_sections[i];
            if (section.m_sectionOffset > top->m_header.m_length ||
                section.m_sectionSize > top->m_header.m_length - section.m_sectionOffset)
                return -EINVAL;
        }
        std::vector<std::pair<std::uint64_t, std::string>> units;  // XRT numbers them by address
        if (const axlf_section_header* head = xclbin::get_axlf_section(top, IP_LAYOUT)) {
            const auto* layout = reinterpret_cast<const ip_layout*>(reinterpret_cast<const char*>(top) + head->m_sectionOffset);
            for (int i = 0; i < layout->m_count; ++i) {
                const std::string name = reinterpret_cast<const char*>(layout->m_ip_data[i].m_name);
                const std::string kernel = name.substr(0, name.find(':'));
                if (!world::get().find(kernel)) return -EINVAL;
                units.emplace_back(layout->m_ip_data[i].m_base_address, kernel);
            }
        }
        std::sort(units.begin(), units.end());
        const std::lock_guard lock(mutex_);
        units_.clear();
        for (auto& unit : units) units_.push_back(std::move(unit.second));
        std::copy_n(top->m_header.uuid, loaded_.size(), loaded_.begin());
        return 0;
    }

    int open_context(const xuid_t id) {
        if (is_lost()) return -ENODEV;
        if (const auto broken = world::get().fails(operation::open_context)) return -broken->error;
        const std::lock_guard lock(mutex_);
        if (!std::equal(loaded_.begin(), loaded_.end(), id)) return -EBUSY;
        world::get().note([](tally& count) { ++count.contexts; });
        return 0;
    }

    /// Faults are decided here, not when the worker gets to a command: the n-th one submitted fails, whatever the timing.
    int submit(xclBufferHandle handle) {
        if (is_lost()) return -ENODEV;
        if (const auto broken = world::get().fails(operation::submit)) return -broken->error;
        command one{handle, find(handle), {}, {}};
        if (!one.buffer || !one.buffer->is_command()) return -EINVAL;
        const auto* packet = static_cast<const ert_packet*>(one.buffer->host);
        const auto* words = static_cast<const std::uint32_t*>(one.buffer->host);
        one.packet.assign(words, words + 1 + packet->count);
        world::get().note([](tally& count) { ++count.submits; });
        {
            const bool is_abort = packet->opcode == ERT_ABORT;
            if (!is_abort) one.broken = world::get().fails(operation::execute);
            const std::lock_guard lock(mutex_);
            if (is_abort)
                abort(one);  // at once, ahead of the queue
            else
                queue_.push_back(std::move(one));
        }
        wake_.notify_all();
        return 0;
    }

    /// Waits until some command has ended: 1; or the time is over: 0.
    int wait(int milliseconds) {
        std::unique_lock lock(mutex_);
        if (!done_.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] { return ended_ != 0; })) return 0;
        --ended_;
        return 1;
    }

private:
    static constexpr std::byte unwritten{0xA5};  // a device does not clear its memory
    static constexpr std::size_t page = 4096;

    struct command {
        xclBufferHandle handle = 0;
        std::shared_ptr<memory_buffer> buffer;
        std::vector<std::uint32_t> packet;  // as it was at submission
        std::optional<fault> broken;
    };

    struct call final : kernel_call {
        call(device& owner, std::shared_ptr<const world::kernel> which, std::span<const std::byte> map)
            : owner_(owner), kernel_(std::move(which)), map_(map) {}

        [[nodiscard]] std::span<const std::byte> registers(std::size_t argument) const override {
            if (argument >= kernel_->offsets.size()) throw device_fault("no such argument");
            const std::size_t at = kernel_->offsets[argument], size = kernel_->spec.arguments[argument].bytes;
            if (at + size > map_.size()) throw device_fault("a start packet shorter than the register map");
            return map_.subspan(at, size);
        }
        [[nodiscard]] std::span<std::byte> bytes(std::size_t argument) const override {
            const auto [buffer, offset] = locate(argument);
            return std::span(buffer->on_device).subspan(offset);
        }
        void require_resident(std::size_t argument, std::size_t count) const override {
            const auto [buffer, offset] = locate(argument);
            const std::lock_guard lock(owner_.mutex_);
            complain(argument, *buffer, buffer->resident, offset, count, "was never synced");
        }
        void take_input(std::size_t argument, std::size_t count) const override {
            const auto [buffer, offset] = locate(argument);
            const std::lock_guard lock(owner_.mutex_);
            complain(argument, *buffer, buffer->fresh, offset, count, "was not synced for this launch");
            buffer->fresh.remove(offset, offset + count);
            if (buffer->host == nullptr) return;
            auto* host = static_cast<std::byte*>(buffer->host) + offset;
            for (std::size_t i = 0; i + sizeof stale <= count; i += sizeof stale) std::memcpy(host + i, &stale, sizeof stale);
        }

    private:
        std::pair<std::shared_ptr<memory_buffer>, std::size_t> locate(std::size_t argument) const {
            auto found = owner_.at(scalar<std::uint64_t>(argument));
            if (!found.first) throw device_fault(name(argument) + " points outside device memory");
            held_.push_back(found.first);
            return found;
        }
        [[nodiscard]] std::string name(std::size_t argument) const {
            return "argument '" + kernel_->spec.arguments[argument].name + "' of " + kernel_->spec.name;
        }
        void complain(std::size_t argument, const memory_buffer& buffer, const byte_ranges& marked, std::size_t begin,
                      std::size_t count, const char* what) const {
            if (begin + count > buffer.size)
                throw device_fault(name(argument) + " is too small: " + std::to_string(buffer.size - begin) + " of " +
                                   std::to_string(count) + " bytes");
            const std::size_t gap = marked.first_gap(begin, begin + count);
            if (gap != begin + count) throw device_fault(name(argument) + ": byte " + std::to_string(gap - begin) + " " + what);
        }

        device& owner_;
        std::shared_ptr<const world::kernel> kernel_;
        std::span<const std::byte> map_;
        mutable std::vector<std::shared_ptr<memory_buffer>> held_;  // alive while the kernel runs, whatever the host frees
    };

    [[nodiscard]] bool is_lost() {
        const std::lock_guard lock(mutex_);
        return lost_;
    }

    /// The buffer that holds a device address, and the offset in it.
    std::pair<std::shared_ptr<memory_buffer>, std::size_t> at(std::uint64_t address) {
        const std::lock_guard lock(mutex_);
        auto it = by_address_.upper_bound(address);
        if (it == by_address_.begin()) return {};
        --it;
        const std::uint64_t offset = address - it->first;
        return offset < it->second->size ? std::pair(it->second, static_cast<std::size_t>(offset))
                                         : std::pair<std::shared_ptr<memory_buffer>, std::size_t>{};
    }

    /// Publishes a command's state where XRT looks for it. The mutex is held.
    void finish(const command& one, unsigned state) {
        std::atomic_ref<std::uint32_t> header(*static_cast<std::uint32_t*>(one.buffer->host));
        header.store((header.load() & ~0xFu) | state, std::memory_order_release);
        ++ended_;
        done_.notify_all();
    }

    void abort(const command& one) {
        // The packet's length does not cover the padding before the handle: read it through XRT's struct.
        const auto target = static_cast<const ert_abort_cmd*>(one.buffer->host)->exec_bo_handle;
        for (auto* list : {&queue_, &hung_}) {
            const auto it = std::find_if(list->begin(), list->end(), [&](const command& c) { return c.handle == target; });
            if (it == list->end()) continue;
            finish(*it, ERT_CMD_STATE_ABORT);
            list->erase(it);
            world::get().note([](tally& count) { ++count.aborted; });
        }
        if (running_ == target) end_running_with_ = ERT_CMD_STATE_ABORT;  // the worker finishes it
        finish(one, ERT_CMD_STATE_COMPLETED);
    }

    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
            if (stop_) return;
            command one = std::move(queue_.front());
            queue_.pop_front();
            running_ = one.handle;
            end_running_with_.reset();
            lock.unlock();

            unsigned state = ERT_CMD_STATE_COMPLETED;
            std::string kernel;
            if (!one.broken) {
                std::chrono::microseconds delay;
                {
                    const std::lock_guard shared(world::get().mutex);
                    delay = world::get().set.execute_delay;
                }
                if (delay.count() != 0) std::this_thread::sleep_for(delay);
                try {
                    kernel = execute(one);
                } catch (const std::exception& reason) {
                    const std::lock_guard shared(world::get().mutex);
                    world::get().last_fault = reason.what();
                    state = ERT_CMD_STATE_ERROR;
                }
            } else if (!one.broken->hang) {
                state = one.broken->state;
            }

            lock.lock();
            running_.reset();
            if (end_running_with_) {
                state = *end_running_with_;
            } else if (one.broken && one.broken->hang) {
                hung_.push_back(std::move(one));
                continue;
            }
            world::get().note([&](tally& count) {
                ++(state == ERT_CMD_STATE_COMPLETED ? count.completed : end_running_with_ ? count.aborted : count.failed);
                if (state == ERT_CMD_STATE_COMPLETED && !kernel.empty()) ++count.runs[kernel];
            });
            finish(one, state);
        }
    }

    /// Runs one command; the name of the kernel, empty for a copy.
    std::string execute(const command& one) {
        const auto* packet = reinterpret_cast<const ert_packet*>(one.packet.data());
        if (packet->opcode == ERT_START_COPYBO) {
            const auto* order = reinterpret_cast<const ert_start_copybo_cmd*>(one.packet.data());
            const auto join = [](std::uint64_t low, std::uint64_t high) { return low | high << 32; };
            // XRT puts the offsets into the address fields of this command.
            if (copy(order->dst_bo_hdl, order->src_bo_hdl, join(order->size, order->size_hi),
                     join(order->dst_addr_lo, order->dst_addr_hi), join(order->src_addr_lo, order->src_addr_hi)) != 0)
                throw device_fault("a copy outside of its buffers");
            return {};
        }
        if (packet->opcode != ERT_START_CU) throw device_fault("opcode " + std::to_string(packet->opcode) + " is not emulated");
        const auto* start = reinterpret_cast<const ert_start_kernel_cmd*>(one.packet.data());
        const std::size_t masks = 1 + start->extra_cu_masks;
        std::size_t unit = 0;
        while (unit < masks * 32 && ((one.packet[1 + unit / 32] >> (unit % 32)) & 1u) == 0) ++unit;
        std::string name;
        {
            const std::lock_guard lock(mutex_);
            if (unit >= units_.size()) throw device_fault("no such compute unit");
            name = units_[unit];
        }
        const auto kernel = world::get().find(name);
        if (!kernel) throw device_fault("no kernel '" + name + "'");
        const call started(*this, kernel, std::as_bytes(std::span(one.packet)).subspan(4 * (1 + masks)));
        kernel->function(started);
        return name;
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    bool stop_ = false, lost_ = false;
    std::map<xclBufferHandle, std::shared_ptr<memory_buffer>> buffers_;
    std::map<std::uint64_t, std::shared_ptr<memory_buffer>> by_address_;
    xclBufferHandle next_handle_ = 1;
    std::uint64_t next_address_ = std::uint64_t{4} << 32;
    std::vector<std::string> units_;  // kernel of each compute unit
    std::array<unsigned char, 16> loaded_{};
    std::deque<command> queue_, hung_;
    std::optional<xclBufferHandle> running_;  // taken by the worker, not finished yet
    std::optional<unsigned> end_running_with_;
    std::uint64_t ended_ = 0;
    std::thread worker_;
};

}  // namespace xrt_emulator

#pragma once
/// An XRT device inside this process. A program that links `xrt_emulator` keeps the unmodified libxrt; every xrt::device, bo,
/// kernel and run in it talks to this device. Here a test registers kernels, breaks things on purpose, and counts.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>

#include "xrt_emulator/kernel_spec.hpp"

#define XRT_EMULATOR_API __attribute__((visibility("default")))

namespace xrt_emulator {

/// Thrown by a kernel (as anything else is), it ends the command in ERT_CMD_STATE_ERROR.
struct device_fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// What a kernel sees of the command that started it. All memory is the device's copy: what the host wrote but did not sync
/// is not there.
class kernel_call {
public:
    kernel_call() = default;
    kernel_call(const kernel_call&) = delete;
    kernel_call& operator=(const kernel_call&) = delete;
    virtual ~kernel_call() = default;

    /// From the argument's address to the end of its buffer. Faults where no live buffer is.
    [[nodiscard]] virtual std::span<std::byte> bytes(std::size_t argument) const = 0;
    /// The argument in the register map.
    [[nodiscard]] virtual std::span<const std::byte> registers(std::size_t argument) const = 0;
    /// Faults unless each of the first `count` bytes of the buffer has been synced to the device at least once.
    virtual void require_resident(std::size_t argument, std::size_t count) const = 0;
    /// The same for input of one launch: each byte must have been synced since the launch that used it last. Afterwards the
    /// host's copy is overwritten with `stale`, so that a byte the host does not write again is found by `is_stale`.
    virtual void take_input(std::size_t argument, std::size_t count) const = 0;

    static constexpr std::uint16_t stale = 0x7FA5;  // a signalling NaN in bfloat16, which no rounding makes
    [[nodiscard]] static bool is_stale(std::uint16_t element) { return element == stale; }

    template <class T>
    [[nodiscard]] std::span<T> buffer(std::size_t argument) const {
        const auto all = bytes(argument);
        return {reinterpret_cast<T*>(all.data()), all.size() / sizeof(T)};
    }
    template <class T>
    [[nodiscard]] T scalar(std::size_t argument) const {
        const auto raw = registers(argument);
        if (raw.size() < sizeof(T)) throw device_fault("a scalar wider than its argument");
        T value;
        std::memcpy(&value, raw.data(), sizeof value);
        return value;
    }
};

using kernel_function = std::function<void(const kernel_call&)>;

/// Replaces a kernel of the same name. A binary that names a kernel without a function is refused when it is loaded.
XRT_EMULATOR_API void register_kernel(kernel_spec spec, kernel_function function);
XRT_EMULATOR_API void clear_kernels();

/// Where something can go wrong.
enum class operation : std::uint8_t {
    open,              // no such device
    load_binary,       // errno
    open_context,      // errno
    allocate,          // of a data buffer: no memory
    map,               // no address
    sync_to_device,    // errno
    sync_from_device,  // errno
    submit,            // errno
    execute,           // the command ends in `state`, or never
};

struct fault {
    operation at = operation::allocate;
    unsigned after = 0;  // calls that succeed first
    unsigned times = 1;  // calls that fail then; 0: all from there on
    int error = 5;       // EIO
    unsigned state = 5;  // ERT_CMD_STATE_ERROR
    bool hang = false;   // the command does not end before it is aborted
};
XRT_EMULATOR_API void inject(const fault& what);
XRT_EMULATOR_API void clear_faults();

/// Resets the hardware under its users: memory is gone, pending commands end in ERT_CMD_STATE_NORESPONSE, and all that was
/// opened before answers ENODEV. What is opened afterwards works.
XRT_EMULATOR_API void lose_devices();

struct settings {
    unsigned devices = 1;
    std::uint64_t memory_bytes = std::uint64_t{1} << 32;  // of all devices together; no allocation goes beyond
    std::chrono::microseconds execute_delay{0};           // added to every command
};
XRT_EMULATOR_API void configure(const settings& wanted);

struct tally {
    std::uint64_t opens = 0, closes = 0, binaries = 0, contexts = 0;
    std::uint64_t allocations = 0, frees = 0, live_bytes = 0, peak_bytes = 0;  // of data buffers
    std::uint64_t syncs_to = 0, bytes_to = 0, syncs_from = 0, bytes_from = 0;
    std::uint64_t submits = 0, completed = 0, failed = 0, aborted = 0;
    std::map<std::string, std::uint64_t> runs;  // completed, by kernel
};
XRT_EMULATOR_API tally counters();
XRT_EMULATOR_API void reset_counters();  // all but live_bytes

/// Why the last command ended in an error; for messages of tests.
XRT_EMULATOR_API std::string last_fault();

/// As at the start: no kernels, no faults, default settings, counters at zero (but for live_bytes).
XRT_EMULATOR_API void restart();

}  // namespace xrt_emulator

// The emulated device itself, through the unmodified libxrt: what it checks on purpose, and what XRT makes of its failures.
#include <doctest/doctest.h>
#include <ert.h>
#include <experimental/xrt_xclbin.h>
#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "xrt_emulator/emulator.hpp"
#include "xrt_emulator/tile_matmul.hpp"
#include "xrt_emulator/xclbin_builder.hpp"

namespace emu = xrt_emulator;
using emu::operation;

namespace {

/// y = factor * x
const emu::kernel_spec scale{
    "scale", {emu::buffer_argument("x"), emu::buffer_argument("y"), emu::f32_argument("factor"), emu::u32_argument("n")}};

void run_scale(const emu::kernel_call& call) {
    const auto x = call.buffer<float>(0), y = call.buffer<float>(1);
    const auto factor = call.scalar<float>(2);
    for (std::uint32_t i = 0; i < call.scalar<std::uint32_t>(3); ++i) y[i] = factor * x[i];
}

struct fixture {
    static constexpr std::uint32_t n = 1024;

    fixture() {
        emu::restart();
        emu::register_kernel(scale, run_scale);
        device = xrt::device(0);
        id = device.load_xclbin(xrt::xclbin(emu::xclbin_builder().add(scale).build()));
        kernel = xrt::kernel(device, id, "scale");
        x = xrt::bo(device, n * sizeof(float), group(0));
        y = xrt::bo(device, n * sizeof(float), xrt::bo::flags::host_only, group(1));
        std::iota(x.map<float*>(), x.map<float*>() + n, 1.0f);
        emu::reset_counters();
    }
    fixture(const fixture&) = delete;
    fixture& operator=(const fixture&) = delete;
    ~fixture() { emu::clear_faults(); }

    [[nodiscard]] xrt::memory_group group(int argument) const {
        return static_cast<xrt::memory_group>(kernel.group_id(argument));
    }
    [[nodiscard]] xrt::run prepared() const {
        xrt::run run(kernel);
        run.set_arg(0, x);
        run.set_arg(1, y);
        run.set_arg(2, 3.0f);
        run.set_arg(3, n);
        return run;
    }

    xrt::device device;
    xrt::uuid id;
    xrt::kernel kernel;
    xrt::bo x, y;
};

/// The errno of what `f` throws; 0 if it does not.
int thrown(const std::function<void()>& f) {
    try {
        f();
    } catch (const std::system_error& reason) {
        return reason.code().value();
    }
    return 0;
}

ert_cmd_state start_and_wait(xrt::run run) {
    run.start();
    return run.wait(std::chrono::milliseconds(20000));
}

}  // namespace

TEST_CASE_FIXTURE(fixture, "a kernel computes on device memory, and what is done is counted") {
    x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    CHECK(start_and_wait(prepared()) == ERT_CMD_STATE_COMPLETED);
    y.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    CHECK(y.map<float*>()[5] == 18.0f);
    const emu::tally count = emu::counters();
    CHECK(count.syncs_to == 1);
    CHECK(count.bytes_to == n * sizeof(float));
    CHECK(count.syncs_from == 1);
    CHECK(count.bytes_from == n * sizeof(float));
    CHECK(count.submits == 1);
    CHECK(count.completed == 1);
    CHECK(count.runs.at("scale") == 1);
}

TEST_CASE_FIXTURE(fixture, "neither side sees what was not synced") {
    x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    x.map<float*>()[0] = 1000.0f;
    y.map<float*>()[0] = -1.0f;
    CHECK(start_and_wait(prepared()) == ERT_CMD_STATE_COMPLETED);
    CHECK(y.map<float*>()[0] == -1.0f);
    y.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    CHECK(y.map<float*>()[0] == 3.0f);
}

TEST_CASE_FIXTURE(fixture, "a part of a buffer, and a copy between buffers") {
    x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    auto run = prepared();
    run.set_arg(0, xrt::bo(x, 32 * sizeof(float), 32 * sizeof(float)));
    run.set_arg(3, 32u);
    CHECK(start_and_wait(run) == ERT_CMD_STATE_COMPLETED);
    y.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    CHECK(y.map<float*>()[0] == 99.0f);
    y.copy(x, 16 * sizeof(float), 4 * sizeof(float), 0);
    y.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    CHECK(y.map<float*>()[0] == 5.0f);
}

TEST_CASE_FIXTURE(fixture, "many runs in flight, and one run many times") {
    x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    std::vector<xrt::run> runs;
    for (int i = 0; i < 16; ++i) runs.push_back(prepared());
    for (auto& run : runs) run.start();
    for (auto& run : runs) CHECK(run.wait() == ERT_CMD_STATE_COMPLETED);
    for (int i = 0; i < 16; ++i) CHECK(start_and_wait(runs.front()) == ERT_CMD_STATE_COMPLETED);
    CHECK(emu::counters().completed == 32);
}

TEST_CASE_FIXTURE(fixture, "memory: refused allocations, capacity, and what is freed") {
    const std::uint64_t live = emu::counters().live_bytes;
    emu::inject({.at = operation::allocate, .after = 1});
    {
        const xrt::bo first(device, 4096, group(0));
        CHECK_THROWS_AS(xrt::bo(device, 4096, group(0)), std::bad_alloc);
        CHECK_NOTHROW(xrt::bo(device, 4096, group(0)));
        emu::configure({.memory_bytes = live + 8192});
        CHECK_THROWS_AS(xrt::bo(device, 8192, xrt::bo::flags::host_only, group(0)), std::bad_alloc);
        CHECK(emu::counters().live_bytes == live + 4096);
        CHECK(emu::counters().peak_bytes == live + 8192);
    }
    CHECK(emu::counters().live_bytes == live);
}

TEST_CASE_FIXTURE(fixture, "a fault strikes the n-th call and as many as it says") {
    emu::inject({.at = operation::sync_to_device, .after = 2, .times = 2, .error = ETIMEDOUT});
    std::vector<int> codes;
    for (int i = 0; i < 6; ++i) codes.push_back(thrown([&] { x.sync(XCL_BO_SYNC_BO_TO_DEVICE); }));
    CHECK(codes == std::vector<int>{0, 0, ETIMEDOUT, ETIMEDOUT, 0, 0});
    emu::inject({.at = operation::sync_from_device, .times = 0});
    for (int i = 0; i < 3; ++i) CHECK(thrown([&] { y.sync(XCL_BO_SYNC_BO_FROM_DEVICE); }) == EIO);
}

TEST_CASE_FIXTURE(fixture, "how a command ends is a state") {
    for (const unsigned state : {ERT_CMD_STATE_ERROR, ERT_CMD_STATE_TIMEOUT, ERT_CMD_STATE_NORESPONSE}) {
        emu::inject({.at = operation::execute, .state = state});
        const auto run = prepared();
        CHECK(static_cast<unsigned>(start_and_wait(run)) == state);
        CHECK(start_and_wait(run) == ERT_CMD_STATE_COMPLETED);
    }
    auto run = prepared();
    run.set_arg(0, std::uint64_t{0xDEAD});
    CHECK(start_and_wait(run) == ERT_CMD_STATE_ERROR);
    CHECK(emu::last_fault().find("'x' of scale points outside device memory") != std::string::npos);
}

TEST_CASE_FIXTURE(fixture, "a command that hangs can be aborted; one that was refused stays unusable") {
    emu::inject({.at = operation::execute, .hang = true});
    auto run = prepared();
    run.start();
    CHECK(run.wait(std::chrono::milliseconds(20)) == ERT_CMD_STATE_TIMEOUT);
    CHECK_THROWS_AS(run.start(), std::runtime_error);
    CHECK(run.abort() == ERT_CMD_STATE_ABORT);
    CHECK(emu::counters().aborted == 1);
    CHECK(start_and_wait(run) == ERT_CMD_STATE_COMPLETED);

    emu::inject({.at = operation::submit, .error = EIO});
    auto refused = prepared();
    CHECK(thrown([&] { refused.start(); }) == EIO);
    CHECK_THROWS_AS(refused.start(), std::runtime_error);
    CHECK(start_and_wait(prepared()) == ERT_CMD_STATE_COMPLETED);
}

TEST_CASE_FIXTURE(fixture, "opening, loading and contexts can fail") {
    emu::inject({.at = operation::open});
    CHECK_THROWS_AS(xrt::device(0), std::runtime_error);
    CHECK_THROWS_AS(xrt::device(7), std::runtime_error);
    const xrt::xclbin other(emu::xclbin_builder().add(scale).id({1, 2, 3}).build());
    emu::inject({.at = operation::load_binary, .error = EBUSY});
    xrt::device second(0);
    CHECK(thrown([&] { second.load_xclbin(other); }) == EBUSY);
    emu::inject({.at = operation::open_context, .error = EBUSY});
    const auto loaded = second.load_xclbin(other);
    CHECK(thrown([&] { xrt::kernel(second, loaded, "scale"); }) == EBUSY);
    CHECK(thrown([&] { xrt::kernel(second, id, "scale"); }) == EINVAL);
    CHECK(thrown([&] { xrt::kernel(second, loaded, "nosuch"); }) == EINVAL);
}

TEST_CASE_FIXTURE(fixture, "binaries that reach beyond their end or name a kernel that nobody has are refused") {
    // The last section, which XRT leaves alone: it copies the others, as long as they say that they are.
    auto binary = emu::xclbin_builder().add(scale).tag("text").id({4}).build();
    char* const at = binary.data() + offsetof(axlf, m_sections) + 4 * sizeof(axlf_section_header);
    axlf_section_header head;
    std::memcpy(&head, at, sizeof head);
    REQUIRE(head.m_sectionKind == static_cast<std::uint32_t>(USER_METADATA));
    head.m_sectionSize = binary.size();
    std::memcpy(at, &head, sizeof head);
    CHECK(thrown([&] { device.load_xclbin(xrt::xclbin(binary)); }) == EINVAL);
    emu::kernel_spec unknown = scale;
    unknown.name = "unknown";
    CHECK(thrown([&] { device.load_xclbin(xrt::xclbin(emu::xclbin_builder().add(unknown).id({5}).build())); }) == EINVAL);
}

TEST_CASE_FIXTURE(fixture, "a device that is lost answers ENODEV, forgets its memory and ends what was pending") {
    x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    emu::inject({.at = operation::execute, .hang = true});
    auto run = prepared(), later = prepared();
    run.start();
    CHECK(run.wait(std::chrono::milliseconds(20)) == ERT_CMD_STATE_TIMEOUT);
    emu::lose_devices();
    CHECK(run.wait(std::chrono::milliseconds(20000)) == ERT_CMD_STATE_NORESPONSE);
    CHECK(thrown([&] { x.sync(XCL_BO_SYNC_BO_TO_DEVICE); }) == ENODEV);
    CHECK(thrown([&] { later.start(); }) == ENODEV);
    CHECK_THROWS_AS(xrt::bo(device, 4096, group(0)), std::bad_alloc);
    CHECK_NOTHROW(xrt::device(0));
}

namespace {

/// The emulated product, driven by hand.
struct product {
    explicit product(const emu::tile_matmul& wanted) : what(wanted) {
        emu::restart();
        what.install();
        device = xrt::device(0);
        kernel = xrt::kernel(device, device.load_xclbin(xrt::xclbin(what.binary())), what.name);
        const auto make = [&](int argument) {
            return xrt::bo(device, 8192, xrt::bo::flags::host_only, static_cast<xrt::memory_group>(kernel.group_id(argument)));
        };
        instructions = make(1), x = make(3), w = make(4), y = make(5);
        const auto words = what.instructions(32, 256);
        std::memcpy(instructions.map<void*>(), words.data(), words.size() * 4);
        std::memset(w.map<void*>(), 0, 5120);
        // Row 3, column 5: code 7 (a high half, as 3 is odd), scale 2, offset 1 for the columns of its group.
        auto* tile = w.map<std::byte*>();
        const std::uint16_t two = 0x4000, one = 0x3F80;
        std::memcpy(tile + 2 * 3, &two, 2);
        std::memcpy(tile + 512 + 2 * 3, &one, 2);
        tile[1024 + 5 * 8 + 1] = std::byte{0x70};
        write_rows(0, what.tokens);
    }
    product(const product&) = delete;
    product& operator=(const product&) = delete;

    /// Row t: 1 + t in column 5, which is exact in bfloat16, and zeros.
    void write_rows(std::size_t first, std::size_t end) {
        for (std::size_t t = first; t < end; ++t) {
            auto* row = x.map<std::uint16_t*>() + t * 256;
            std::fill(row, row + 256, std::uint16_t{0});
            const float value = static_cast<float>(1 + t);
            std::uint32_t bits;
            std::memcpy(&bits, &value, 4);
            row[5] = static_cast<std::uint16_t>(bits >> 16);
        }
    }
    void sync_all() {
        for (xrt::bo* each : {&instructions, &x, &w}) each->sync(XCL_BO_SYNC_BO_TO_DEVICE);
    }
    ert_cmd_state run(std::uint64_t opcode = emu::tile_matmul::opcode, std::uint32_t count = 4) {
        auto one = kernel(opcode, instructions, count, x, w, y);
        return one.wait(std::chrono::milliseconds(20000));
    }
    /// Whether the last command ended because of this.
    static bool complained(const char* what) { return emu::last_fault().find(what) != std::string::npos; }

    emu::tile_matmul what;
    xrt::device device;
    xrt::kernel kernel;
    xrt::bo instructions, x, w, y;
};

}  // namespace

TEST_CASE("the emulated product computes from tiles") {
    product one({.tokens = 2});
    one.sync_all();
    REQUIRE(one.run() == ERT_CMD_STATE_COMPLETED);
    one.y.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    const auto* y = one.y.map<float*>();
    for (std::size_t t = 0; t < 2; ++t)
        for (std::size_t r = 0; r < 32; ++r) CHECK(y[t * 32 + r] == (r == 3 ? 15.0f * static_cast<float>(1 + t) : 0.0f));
}

TEST_CASE("the emulated product faults on what a real one would get wrong in silence") {
    product one({.tokens = 2});
    // Nothing synced, then one buffer after the other.
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("'instructions' of MLIR_AIE: byte 0 was never synced"));
    one.instructions.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    one.w.sync(XCL_BO_SYNC_BO_TO_DEVICE, 4096, 0);
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("'weights' of MLIR_AIE: byte 4096 was never synced"));
    one.w.sync(XCL_BO_SYNC_BO_TO_DEVICE, 1024, 4096);
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("'activations' of MLIR_AIE: byte 0 was not synced for this launch"));
    one.x.sync(XCL_BO_SYNC_BO_TO_DEVICE, 2 * 256 * 2, 0);
    CHECK(one.run() == ERT_CMD_STATE_COMPLETED);
    // Weights stay, activations are for one launch.
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("'activations' of MLIR_AIE: byte 0 was not synced for this launch"));
    one.write_rows(0, 2);
    one.x.sync(XCL_BO_SYNC_BO_TO_DEVICE, 256 * 2, 0);  // only the first row
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("byte 512 was not synced for this launch"));
    one.x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    CHECK(one.run() == ERT_CMD_STATE_COMPLETED);
    one.write_rows(0, 1);  // the second row is what the launch before left
    one.x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("row 1 of the activations was not written for this launch"));
    one.write_rows(0, 2);
    one.x.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    CHECK(one.run(2) == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("opcode"));
    CHECK(one.run(3, 5) == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("another length"));
    // Instructions of a kernel for more tokens; weights and activations too small for the shape that they imply.
    const auto write = [&](const std::vector<std::uint32_t>& words) {
        std::memcpy(one.instructions.map<void*>(), words.data(), words.size() * 4);
        one.instructions.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    };
    write(emu::tile_matmul{.tokens = 3}.instructions(32, 256));
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("for another kernel"));
    write(one.what.instructions(64, 256));
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("'weights' of MLIR_AIE is too small"));
    write(one.what.instructions(33, 256));
    CHECK(one.run() == ERT_CMD_STATE_ERROR);
    CHECK(product::complained("whole tiles"));
}

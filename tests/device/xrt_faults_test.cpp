// Whatever goes wrong with an NPU comes back as an error, leaks nothing, and leaves right results or a clear way on.
#include <doctest/doctest.h>
#include <ert.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/device/xrt/xrt.hpp"
#include "xrt_device.hpp"
#include "xrt_emulator/xclbin_builder.hpp"

namespace fg = frugal;
namespace emu = xrt_emulator;
using emu::operation;
using fg::errc;
using test::problem;

namespace {

using counting = fg::device::xrt<fg::device::cpu<fg::isa::native, fg::counters_on>>;

/// Opening fails with this error, whose message holds all of `words`; nothing stays open.
void refuses(const fg::device::xrt_options& options, errc code, std::initializer_list<std::string_view> words,
             unsigned index = 0) {
    const auto device = fg::device::xrt<>::open(index, options);
    REQUIRE_FALSE(device);
    CAPTURE(device.error().message);
    CHECK(device.error().code == code);
    for (const std::string_view word : words) {
        CAPTURE(word);
        CHECK(device.error().message.find(word) != std::string::npos);
    }
    CHECK(emu::counters().opens == emu::counters().closes);
    CHECK(emu::counters().live_bytes == 0);
}

/// One product of zeros; its error if there is one.
template <class Device>
fg::status multiply(Device& device, const fg::device::xrt_image& image) {
    fg::workspace scratch;
    const std::vector<float> x(image.cols());
    std::vector<std::vector<float>> y;
    std::vector<fg::matrix_view<float>> results;
    for (const std::size_t rows : image.rows()) {
        y.emplace_back(rows);
        results.emplace_back(y.back().data(), 1, rows);
    }
    return device.multiply(scratch, image, fg::matrix_view<const float>(x.data(), 1, image.cols()), results);
}

/// A section of the binary by its kind, as its header in the file.
void edit_section(std::vector<char>& binary, axlf_section_kind kind, void (*edit)(axlf_section_header&)) {
    axlf top;
    std::memcpy(&top, binary.data(), sizeof top);
    for (std::size_t i = 0; i < top.m_header.m_numSections; ++i) {
        char* const at = binary.data() + offsetof(axlf, m_sections) + i * sizeof(axlf_section_header);
        axlf_section_header head;
        std::memcpy(&head, at, sizeof head);
        if (head.m_sectionKind == static_cast<std::uint32_t>(kind)) edit(head);
        std::memcpy(at, &head, sizeof head);
    }
}

}  // namespace

TEST_CASE("no device, or one that does not open") {
    const test::emulated_machine machine;
    refuses(machine.options(), errc::device_failed, {"open the device", "'7'"}, 7);
    emu::inject({.at = operation::open});
    refuses(machine.options(), errc::device_failed, {"open the device"});
    emu::configure({.devices = 0});
    refuses(machine.options(), errc::device_failed, {"open the device", "'0'"});
}

TEST_CASE("a device that refuses the program or the kernel") {
    const test::emulated_machine machine;
    emu::inject({.at = operation::load_binary, .error = EBUSY});
    refuses(machine.options(), errc::device_failed, {"load the device program"});
    emu::inject({.at = operation::open_context, .error = EBUSY});
    refuses(machine.options(), errc::device_failed, {"open the kernel"});
    emu::inject({.at = operation::load_binary, .error = ENODEV});
    refuses(machine.options(), errc::device_lost, {"load the device program"});
    emu::clear_kernels();
    refuses(machine.options(), errc::device_failed, {"load the device program"});
}

TEST_CASE("a program that is no xclbin, a truncated one, one that reaches beyond its end") {
    const test::emulated_machine machine;
    fg::device::xrt_options options = machine.options();
    const std::vector<char> whole = options.binary;
    options.binary.clear();
    refuses(options, errc::invalid_argument, {"binary or path"});
    options.path = "/nonexistent/file.xclbin";
    refuses(options, errc::io, {"/nonexistent/file.xclbin"});
    options.binary.assign(2000, 'x');
    refuses(options, errc::malformed_file, {"no xclbin"});
    for (std::size_t length = 1; length < whole.size(); length += length < 700 ? 61 : 331) {
        options.binary.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
        CAPTURE(length);
        refuses(options, errc::malformed_file, {});
    }
    options.binary = whole;
    options.binary.push_back('\0');
    refuses(options, errc::malformed_file, {std::to_string(whole.size()), std::to_string(whole.size() + 1)});
    // As many bytes as it says, but those at the end were lost: XRT takes it.
    for (const std::size_t lost : {std::size_t{200}, whole.size() / 2, whole.size() - 500}) {
        options.binary = whole;
        std::fill(options.binary.end() - static_cast<std::ptrdiff_t>(lost), options.binary.end(), '\0');
        CAPTURE(lost);
        CHECK_FALSE(fg::device::xrt<>::open(0, options));
    }
    options.binary = whole;
    edit_section(options.binary, IP_LAYOUT, [](axlf_section_header& head) { head.m_sectionSize = 1 << 20; });
    refuses(options, errc::malformed_file, {"beyond its end"});
    options.binary = whole;
    edit_section(options.binary, USER_METADATA, [](axlf_section_header& head) { head.m_sectionOffset = std::uint64_t{0} - 8; });
    refuses(options, errc::malformed_file, {"beyond its end"});
    options.binary = whole;
    options.binary[offsetof(axlf, m_header) + offsetof(axlf_header, m_numSections) + 3] = 1;
    refuses(options, errc::malformed_file, {"list of"});
}

TEST_CASE("a program is read from a file") {
    const test::emulated_machine machine;
    fg::device::xrt_options options = machine.options();
    const auto path = std::filesystem::temp_directory_path() / "frugal_xrt_test.xclbin";
    std::ofstream(path, std::ios::binary).write(options.binary.data(), static_cast<std::streamsize>(options.binary.size()));
    options.binary.clear();
    options.path = path.string();
    {
        auto device = fg::device::xrt<>::open(0, options);
        REQUIRE(device);
        const problem one({4}, 5, 1);
        const auto image = one.pack(*device);
        REQUIRE(image);
        one.check(*device, *image, 1, 1);
    }
    std::filesystem::remove(path);
}

TEST_CASE("C61 a program for another shape, other tiles or another kernel is refused, and the error names both") {
    const test::emulated_machine machine({.tokens = 4});
    const std::string ours = fg::device::xrt<>::tile_name();
    const auto tagged = [&](const std::string& tag) {
        fg::device::xrt_options options = machine.options();
        options.binary = emu::xclbin_builder().add(machine.kernel.spec()).tag(tag).build();
        return options;
    };
    const std::string head = "frugal-tile-matmul 1 ";
    refuses(tagged(""), errc::malformed_file, {"frugal-tile-matmul 1", "none"});
    refuses(tagged("frugal-tile-matmul 2 tokens=4"), errc::malformed_file, {"frugal-tile-matmul 1", "frugal-tile-matmul 2"});
    refuses(tagged("frugal-tile-matmul 12 tokens=4"), errc::malformed_file, {"frugal-tile-matmul 12"});
    refuses(tagged(head + "tile=q4nx:64x256:10240 tokens=4"), errc::unsupported, {"q4nx:64x256:10240", ours});
    refuses(tagged(head + "tokens=4"), errc::unsupported, {ours});
    refuses(tagged(head + "tile=" + ours), errc::malformed_file, {"tokens"});
    for (const char* bad : {"tokens=0", "tokens=", "tokens=x", "tokens=4x", "tokens=-4", "tokens=99999999999999999999", "rows=?"})
        refuses(tagged(head + "tile=" + ours + " " + bad), errc::malformed_file, {});
    refuses(tagged(head + "tile=" + ours + " tokens=4 activations=i8"), errc::unsupported, {"i8", "bf16"});
    refuses(tagged(head + "tile=" + ours + " tokens=4 output=bf16"), errc::unsupported, {"bf16", "f32"});

    fg::device::xrt_options options = machine.options();
    options.id = "f00d0102-0300-0000-0000-000000000001";
    refuses(options, errc::unsupported, {"f00d0102-0300-0000-0000-000000000001", "f00d0102030000000000000000000000"});
    options.id = "F00D0102-0300-0000-0000-000000000000";
    CHECK(fg::device::xrt<>::open(0, options));

    options = machine.options();
    options.kernel.name = "nosuch";
    refuses(options, errc::not_found, {"nosuch", "MLIR_AIE"});

    // Built for one shape: only that one is packed.
    auto fixed = fg::device::xrt<>::open(0, tagged(head + "tile=" + ours + " tokens=4 rows=64 columns=512 future=1\n"));
    REQUIRE(fixed);
    const problem right({40, 3}, 400, 1), tall({65}, 512, 2), narrow({64}, 256, 3);
    const auto image = right.pack(*fixed);
    REQUIRE(image);
    right.check(*fixed, *image, 5, 1);
    for (const problem* wrong : {&tall, &narrow}) {
        const auto refused = wrong->pack(*fixed);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == errc::unsupported);
        CHECK(refused.error().message.find("[64, 512]") != std::string::npos);
        CHECK(refused.error().message.find(wrong == &tall ? "[96, 512]" : "[64, 256]") != std::string::npos);
    }
}

TEST_CASE("C61 a layout that does not fit the kernel's arguments") {
    const test::emulated_machine machine;
    const auto with = [&](int fg::device::xrt_kernel_layout::*argument, int index) {
        fg::device::xrt_options options = machine.options();
        options.kernel.*argument = index;
        return options;
    };
    using layout = fg::device::xrt_kernel_layout;
    refuses(with(&layout::output, 6), errc::unsupported, {"6 arguments", "output", "argument 6"});
    refuses(with(&layout::output, -2), errc::unsupported, {"output", "-2"});
    refuses(with(&layout::tokens, 6), errc::unsupported, {"6 arguments", "tokens"});
    refuses(with(&layout::activations, 0), errc::unsupported, {"argument 0", "a scalar", "activations"});
    refuses(with(&layout::opcode, 3), errc::unsupported, {"argument 3"});
    refuses(with(&layout::weights, 3), errc::unsupported, {"argument 3", "twice"});
    refuses(with(&layout::weights, layout::absent), errc::invalid_argument, {"weights"});
    fg::device::xrt_options options = machine.options();
    options.limit = std::chrono::milliseconds(0);
    refuses(options, errc::invalid_argument, {"limit"});
    options = machine.options();
    options.instructions = nullptr;
    refuses(options, errc::invalid_argument, {"instructions"});
}

TEST_CASE("a shape without instructions is not packed") {
    const test::emulated_machine machine;
    fg::device::xrt_options options = machine.options();
    options.instructions = [plain = options.instructions](std::size_t rows, std::size_t columns) {
        return rows == 64 ? std::vector<std::uint32_t>() : plain(rows, columns);
    };
    auto device = fg::device::xrt<>::open(0, options);
    REQUIRE(device);
    const auto refused = problem({40}, 5, 1).pack(*device);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::unsupported);
    CHECK(refused.error().message.find("[64, 256]") != std::string::npos);
    CHECK(emu::counters().live_bytes == 0);
    CHECK(problem({32}, 5, 1).pack(*device));
}

TEST_CASE("C58 the device is full at the n-th allocation: an error for that image alone, nothing leaked") {
    const test::emulated_machine machine({.tokens = 16});
    auto device = machine.open<counting>();
    const problem resident({32}, 256, 1), large({100, 28}, 600, 2);
    const auto first = resident.pack(device);
    REQUIRE(first);
    // An image of a new, larger shape takes four buffers: instructions, weights, activations, output.
    for (unsigned n = 0; n < 4; ++n) {
        CAPTURE(n);
        const std::uint64_t live = emu::counters().live_bytes;
        emu::inject({.at = operation::allocate, .after = n});
        const auto failed = large.pack(device);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::out_of_memory);
        CHECK(emu::counters().live_bytes == live);
        CHECK_FALSE(device.lost());
        resident.check(device, *first, 3, n);
        emu::clear_faults();
    }
    CHECK(device.counters().read(fg::counter::images_packed) == 1);
    const auto second = large.pack(device);
    REQUIRE(second);
    large.check(device, *second, 3, 9);
    resident.check(device, *first, 3, 10);

    // And full for good: what is resident goes on.
    emu::configure({.memory_bytes = emu::counters().live_bytes + 5000});
    const std::uint64_t live = emu::counters().live_bytes;
    for (int i = 0; i < 3; ++i) {
        const auto failed = large.pack(device);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::out_of_memory);
        CHECK(emu::counters().live_bytes == live);
    }
    large.check(device, *second, 1, 11);
}

TEST_CASE("an upload that fails makes no image") {
    const test::emulated_machine machine({.tokens = 2});
    auto device = machine.open<counting>();
    const problem resident({32}, 256, 1), large({100, 28}, 600, 2);
    const auto first = resident.pack(device);
    REQUIRE(first);
    for (const int error : {EIO, ETIMEDOUT, EINVAL})
        for (unsigned n = 0; n < 2; ++n) {  // instructions, weights
            const std::uint64_t live = emu::counters().live_bytes;
            emu::inject({.at = operation::sync_to_device, .after = n, .error = error});
            const auto failed = large.pack(device);
            REQUIRE_FALSE(failed);
            CHECK(failed.error().code == errc::device_failed);
            CHECK(emu::counters().live_bytes == live);
            emu::clear_faults();
        }
    emu::inject({.at = operation::map, .times = 0});
    CHECK_FALSE(large.pack(device));
    emu::clear_faults();
    CHECK(device.counters().read(fg::counter::images_packed) == 1);
    CHECK(device.counters().read(fg::counter::image_bytes_uploaded) == 5120);
    const auto second = large.pack(device);
    REQUIRE(second);
    large.check(device, *second, 3, 9);
    resident.check(device, *first, 3, 10);
}

TEST_CASE("a product that fails is an error, and the next one is right") {
    const test::emulated_machine machine({.tokens = 2});
    auto device = machine.open<counting>();
    const problem one({33}, 300, 1);
    const auto image = one.pack(device);
    REQUIRE(image);
    const auto generation = device.generation();
    const std::vector<emu::fault> faults{
        {.at = operation::sync_to_device, .error = EIO},
        {.at = operation::sync_from_device, .error = ETIMEDOUT},
        {.at = operation::submit, .error = EIO},
        {.at = operation::execute, .state = ERT_CMD_STATE_ERROR},
        {.at = operation::execute, .state = ERT_CMD_STATE_ABORT},
        {.at = operation::execute, .state = ERT_CMD_STATE_TIMEOUT},
    };
    for (const emu::fault& what : faults) {
        CAPTURE(static_cast<int>(what.at));
        CAPTURE(what.state);
        const std::uint64_t live = emu::counters().live_bytes;
        emu::inject(what);
        const fg::status failed = multiply(device, *image);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::device_failed);
        emu::clear_faults();
        CHECK(device.generation() == generation);
        one.check(device, *image, 3, 1);
        CHECK(emu::counters().live_bytes == live);
    }
    CHECK(device.counters().read(fg::counter::image_products) == faults.size());
}

TEST_CASE("a kernel that does not end is aborted in time, and the device goes on") {
    const test::emulated_machine machine({.tokens = 2});
    fg::device::xrt_options options = machine.options();
    options.limit = std::chrono::milliseconds(30);
    auto device = fg::device::xrt<>::open(0, options);
    REQUIRE(device);
    const problem one({33}, 300, 1);
    const auto image = one.pack(*device);
    REQUIRE(image);
    for (int i = 0; i < 3; ++i) {
        emu::inject({.at = operation::execute, .hang = true});
        const auto begin = std::chrono::steady_clock::now();
        const fg::status failed = multiply(*device, *image);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::device_failed);
        CHECK(failed.error().message.find("30 ms") != std::string::npos);
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
        CHECK(emu::counters().aborted == static_cast<std::uint64_t>(i) + 1);
        one.check(*device, *image, 1, 1);
    }
}

TEST_CASE("a device that is reset loses its images: they are refused, never run, until packed again") {
    const test::emulated_machine machine({.tokens = 2});
    auto device = machine.open();
    const problem one({33}, 300, 1), two({5}, 40, 2);
    const auto image = one.pack(device);
    REQUIRE(image);
    const auto generation = device.generation();
    CHECK(image->generation() == generation);
    emu::lose_devices();
    const std::uint64_t runs = emu::counters().completed;
    fg::status failed = multiply(device, *image);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == errc::device_lost);
    CHECK(device.generation() != generation);
    CHECK(device.lost());
    failed = multiply(device, *image);
    CHECK((!failed && failed.error().code == errc::device_lost));
    auto refused = two.pack(device);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::device_lost);

    REQUIRE(device.reopen());
    CHECK_FALSE(device.lost());
    failed = multiply(device, *image);  // of the device before
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == errc::device_lost);
    CHECK(failed.error().message.find("generation") != std::string::npos);
    CHECK(emu::counters().completed == runs);
    const auto again = one.pack(device);
    REQUIRE(again);
    one.check(device, *again, 3, 1);
}

TEST_CASE("a device lost while an image is uploaded or a kernel runs") {
    for (const int error : {ENODEV, ENXIO, ESHUTDOWN}) {
        const test::emulated_machine machine({.tokens = 2});
        auto device = machine.open();
        const problem one({33}, 300, 1);
        const auto generation = device.generation();
        emu::inject({.at = operation::sync_to_device, .after = 1, .error = error});
        const auto failed = one.pack(device);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::device_lost);
        CHECK(device.generation() != generation);
        CHECK(emu::counters().live_bytes == 0);
        REQUIRE(device.reopen());
        const auto image = one.pack(device);
        REQUIRE(image);
        one.check(device, *image, 1, 1);
    }
    for (const bool by_itself : {false, true}) {
        const test::emulated_machine machine({.tokens = 2});
        auto device = machine.open();
        const problem one({33}, 300, 1);
        const auto image = one.pack(device);
        REQUIRE(image);
        const auto generation = device.generation();
        if (by_itself)
            emu::inject({.at = operation::execute, .state = ERT_CMD_STATE_NORESPONSE});
        else
            emu::register_kernel(machine.kernel.spec(), [](const emu::kernel_call&) { emu::lose_devices(); });
        const fg::status failed = multiply(device, *image);
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::device_lost);
        CHECK(device.generation() != generation);
        machine.kernel.install();
        REQUIRE(device.reopen());
        const auto again = one.pack(device);
        REQUIRE(again);
        one.check(device, *again, 1, 1);
    }
}

TEST_CASE("a device that is closed and does not open again stays lost") {
    const test::emulated_machine machine({.tokens = 2});
    auto device = machine.open();
    const problem one({33}, 300, 1);
    {
        const auto image = one.pack(device);
        REQUIRE(image);
        emu::configure({.devices = 0});
        const fg::status failed = device.reopen();
        REQUIRE_FALSE(failed);
        CHECK(failed.error().code == errc::device_failed);
        CHECK(device.lost());
        CHECK(device.tokens_per_launch() == 0);
        CHECK_FALSE(multiply(device, *image));
    }
    CHECK(emu::counters().live_bytes == 0);
    emu::configure({});
    REQUIRE(device.reopen());
    const auto image = one.pack(device);
    REQUIRE(image);
    one.check(device, *image, 1, 1);
}

TEST_CASE("images of another device, and shapes that do not fit, are refused") {
    const test::emulated_machine machine({.tokens = 2});
    emu::configure({.devices = 2});
    auto device = machine.open(), other = machine.open();
    CHECK(device.generation() != other.generation());
    const problem one({33, 2}, 300, 1);
    auto image = one.pack(device);
    REQUIRE(image);
    CHECK(multiply(device, *image));
    fg::status failed = multiply(other, *image);
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == errc::device_lost);
    CHECK_FALSE(other.lost());

    fg::workspace scratch;
    std::vector<float> x(2 * 301), y(2 * 40);
    const auto product = [&](std::size_t tokens, std::size_t cols, std::vector<fg::matrix_view<float>> results) {
        const fg::status done = device.multiply(scratch, *image, fg::matrix_view<const float>(x.data(), tokens, cols), results);
        return !done && done.error().code == errc::shape_mismatch;
    };
    float* const at = y.data();
    CHECK_FALSE(product(2, 300, {{at, 2, 33}, {at, 2, 2}}));
    CHECK(product(2, 301, {{at, 2, 33}, {at, 2, 2}}));
    CHECK(product(2, 300, {{at, 2, 33}}));
    CHECK(product(2, 300, {{at, 2, 33}, {at, 2, 2}, {at, 2, 2}}));
    CHECK(product(2, 300, {{at, 1, 33}, {at, 2, 2}}));
    CHECK(product(2, 300, {{at, 2, 33}, {at, 2, 3}}));

    const auto packs = [&](std::vector<fg::matrix_view<const float>> parts) {
        const auto done = device.pack(std::span<const fg::matrix_view<const float>>(parts));
        return !done && done.error().code == errc::shape_mismatch;
    };
    CHECK(packs({}));
    CHECK(packs({{x.data(), 0, 300}}));
    CHECK(packs({{x.data(), 2, 0}}));
    CHECK(packs({{x.data(), 1, 300}, {x.data(), 1, 299}}));
    CHECK(packs({{x.data(), std::size_t{1} << 33, 300}}));

    const fg::device::xrt_image moved = std::move(image).value();
    failed = multiply(device, *image);  // NOLINT: nothing is left in it
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == errc::device_lost);
    CHECK(image->bytes() == 0);
    CHECK(multiply(device, moved));
}

TEST_CASE("a weight that is not finite is named and leaves nothing on the device") {
    const test::emulated_machine machine({.tokens = 2});
    auto device = machine.open();
    std::vector<float> w(40 * 300, 0.5f);
    w[33 * 300 + 7] = std::numeric_limits<float>::quiet_NaN();
    const fg::matrix_view<const float> part(w.data(), 40, 300);
    const auto failed = device.pack({&part, 1});
    REQUIRE_FALSE(failed);
    CHECK(failed.error().code == errc::not_finite);
    CHECK(failed.error().message.find("row 33, column 7") != std::string::npos);
    CHECK(emu::counters().live_bytes == 0);
}

#include "frugal/device/xrt/xrt.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/q4nx.hpp"
#include "weights.hpp"
#include "xrt_device.hpp"

namespace fg = frugal;
namespace emu = xrt_emulator;

namespace {

using counting = fg::device::xrt<fg::device::cpu<fg::isa::native, fg::counters_on>>;
using test::problem;

/// Runs tasks from the last to the first, and says that it is three threads.
struct backwards {
    [[nodiscard]] static std::size_t concurrency() { return 3; }
    static void run(std::size_t n, fg::device::task_ref f) {
        while (n-- != 0) f(n);
    }
};

}  // namespace

TEST_CASE("products from resident images, for whole and ragged shapes and numbers of tokens") {
    for (const bool scalars : {false, true}) {
        const test::emulated_machine machine({.tokens = 4, .shape_scalars = scalars});
        auto device = machine.open();
        CHECK(device.tokens_per_launch() == 4);
        for (const auto& [rows, cols] : {std::pair(std::vector<std::size_t>{32}, std::size_t{256}),
                                         std::pair(std::vector<std::size_t>{1}, std::size_t{1}),
                                         std::pair(std::vector<std::size_t>{64, 17, 3}, std::size_t{300}),
                                         std::pair(std::vector<std::size_t>{5, 31}, std::size_t{513})}) {
            const problem one(rows, cols, 7);
            CAPTURE(one.cols);
            const auto image = one.pack(device);
            REQUIRE_MESSAGE(image, image.error().message);
            for (const unsigned tokens : {0u, 1u, 3u, 4u, 9u}) one.check(device, *image, tokens, 100 + tokens);
        }
    }
}

TEST_CASE("the emulated kernel decodes tiles as the library does, bit for bit") {
    const std::vector<float> w = test::random_floats(32 * 256, 3, 0.05f);
    std::vector<std::byte> tile(5120);
    fg::quant::q4nx<>::encode_tile(w.data(), 256, tile.data());
    std::vector<float> ours(w.size()), theirs(w.size());
    fg::quant::q4nx<>::decode_tile(tile.data(), ours.data(), 256);
    emu::tile_matmul::decode(tile.data(), theirs.data());
    for (std::size_t r = 0; r < 32; ++r)
        for (std::size_t c = 0; c < 256; ++c) CHECK(ours[r * 256 + c] == theirs[c * 32 + r]);
}

TEST_CASE("a product on resident weights uploads activations and nothing else") {
    const test::emulated_machine machine({.tokens = 4});
    auto device = machine.open<counting>();
    const problem one({40, 9}, 300, 1);  // 64 x 512 in whole tiles
    const auto image = one.pack(device);
    REQUIRE(image);
    CHECK(image->bytes() == 4 * 5120);
    CHECK(device.counters().read(fg::counter::images_packed) == 1);
    CHECK(device.counters().read(fg::counter::image_bytes_uploaded) == 4 * 5120);
    emu::reset_counters();
    for (const unsigned tokens : {1u, 9u}) one.check(device, *image, tokens, 5);
    const emu::tally count = emu::counters();
    CHECK(count.runs.at("MLIR_AIE") == 1 + 3);
    CHECK(count.syncs_to == 4);
    CHECK(count.bytes_to == 4 * 4 * 512 * 2);  // every launch: all rows of the tile in bfloat16
    CHECK(count.bytes_from == (1 + 9) * 64 * 4);
    CHECK(count.allocations == 0);
    CHECK(device.counters().read(fg::counter::image_products) == 2);
    CHECK(device.counters().read(fg::counter::images_packed) == 1);
    CHECK(device.counters().read(fg::counter::image_bytes_uploaded) == 4 * 5120);
}

TEST_CASE("instruction streams are made once a shape, activation buffers grow and are shared") {
    const test::emulated_machine machine({.tokens = 2});
    fg::device::xrt_options options = machine.options();
    std::vector<std::pair<std::size_t, std::size_t>> asked;
    options.instructions = [&, plain = options.instructions](std::size_t rows, std::size_t columns) {
        asked.emplace_back(rows, columns);
        return plain(rows, columns);
    };
    auto device = fg::device::xrt<>::open(0, options);
    REQUIRE(device);
    const problem small({32}, 256, 1), same({20}, 200, 2), large({3000}, 2049, 3);
    const auto image = small.pack(*device), twin = same.pack(*device);
    REQUIRE((image && twin));
    CHECK(asked == std::vector<std::pair<std::size_t, std::size_t>>{{32, 256}});
    CHECK(emu::counters().allocations == 1 + 2 + 2);  // instructions, two images, activations and output
    const auto big = large.pack(*device);
    REQUIRE(big);
    CHECK(asked.back() == std::pair<std::size_t, std::size_t>(3008, 2304));
    CHECK(emu::counters().allocations == 5 + 4);
    CHECK(emu::counters().frees == 2);  // the small activations and output
    emu::reset_counters();
    large.check(*device, *big, 1, 4);
    small.check(*device, *image, 3, 5);
    same.check(*device, *twin, 3, 6);
    CHECK(emu::counters().allocations == 0);
}

TEST_CASE("C59 rows of a launch without a token are zeroed, not left from the launch before") {
    // The emulated kernel ends in an error where a row was not written, or not synced, for its launch.
    const test::emulated_machine machine({.tokens = 16});
    auto device = machine.open();
    const problem wide({33}, 700, 1), narrow({40}, 90, 2);
    const auto first = wide.pack(device), second = narrow.pack(device);
    REQUIRE((first && second));
    for (const unsigned tokens : {16u, 1u, 15u, 17u, 2u}) {
        wide.check(device, *first, tokens, tokens);
        narrow.check(device, *second, tokens, tokens + 50);
    }
}

TEST_CASE("the bits of a token's result do not depend on the tokens beside it") {
    const test::emulated_machine machine({.tokens = 4});
    auto device = machine.open();
    const problem one({31, 7}, 300, 1);
    const auto image = one.pack(device);
    REQUIRE(image);
    const std::vector<float> together = one.check(device, *image, 6, 9);
    const std::vector<float> x = test::random_floats(6 * 303, 9);
    for (std::size_t t = 0; t < 6; ++t) {
        std::vector<float> alone(38);
        const fg::matrix_view<float> y[] = {{alone.data(), 1, 31}, {alone.data() + 31, 1, 7}};
        REQUIRE(device.multiply(one.scratch, *image, fg::matrix_view<const float>(x.data() + t * 303, 1, 300), y));
        CHECK(std::memcmp(alone.data(), together.data() + t * 38, 38 * sizeof(float)) == 0);
    }
}

TEST_CASE("packing on several threads of the host gives the same image") {
    const test::emulated_machine machine({.tokens = 2});
    backwards executor;
    auto device = machine.open(executor);
    CHECK(device.concurrency() == 3);
    for (const std::size_t rows : {1u, 33u, 64u, 200u}) {
        const problem one({rows, 5}, 300, 4);
        const auto image = one.pack(device);
        REQUIRE(image);
        one.check(device, *image, 2, 1);
    }
}

TEST_CASE("arguments that a kernel declares and nobody needs are set all the same") {
    const test::emulated_machine machine({.tokens = 2, .spare_buffers = 2});
    auto device = machine.open();
    const problem one({32}, 256, 1);
    const auto image = one.pack(device);
    REQUIRE(image);
    one.check(device, *image, 2, 1);
}

TEST_CASE("operators of the host run on it unchanged") {
    static_assert(fg::device::cpu_target<counting> && fg::device::image_target<counting>);
    static_assert(std::is_same_v<counting::isa, fg::isa::native> && std::is_same_v<counting::counters_type, fg::counters_on>);
    const test::emulated_machine machine({.tokens = 2});
    backwards executor;
    auto device = machine.open<counting>(executor);
    fg::device::cpu<> host;
    fg::workspace scratch;
    const auto w = test::random_weights<fg::quant::q8_0>(48, 64, 1);
    const auto x = test::random_floats(3 * 64, 2);
    const fg::quant::weight_view weights{fg::quant::q8_0::type, w.data(), 48, 64, 64 / 32 * fg::quant::q8_0::block_bytes};
    std::vector<float> there(3 * 48), here(3 * 48);
    const fg::matrix_view<const float> input(x.data(), 3, 64);
    using formats = fg::quant::list<fg::quant::q8_0>;
    REQUIRE(fg::ops::matmul<formats>(device, scratch, weights, input, fg::matrix_view<float>(there.data(), 3, 48)));
    REQUIRE(fg::ops::matmul<formats>(host, scratch, weights, input, fg::matrix_view<float>(here.data(), 3, 48)));
    CHECK(there == here);
    CHECK(device.counters().read(fg::counter::matmul_calls) == 1);
    CHECK(&device.counters() == &device.host().counters());
    std::vector<int> seen(10);
    device.run_ranges(10, 1, [&](std::size_t begin, std::size_t end) {
        while (begin != end) ++seen[begin++];
    });
    CHECK(seen == std::vector<int>(10, 1));
}

TEST_CASE("devices and images move; memory goes back when the image goes") {
    const test::emulated_machine machine({.tokens = 2});
    const problem one({32}, 256, 1), other({60}, 256, 2);
    std::optional<fg::device::xrt_image> survivor;
    {
        auto opened = machine.open();
        auto device = std::move(opened);
        auto image = one.pack(device);
        REQUIRE(image);
        const std::uint64_t live = emu::counters().live_bytes;
        {
            auto second = other.pack(device);
            REQUIRE(second);
            CHECK(second->bytes() == 12288);  // two tiles, in whole pages
            fg::device::xrt_image moved = std::move(second).value();
            other.check(device, moved, 3, 1);
        }
        CHECK(emu::counters().live_bytes == live + 4096);  // the instructions for its shape stay
        survivor.emplace(std::move(image).value());
        one.check(device, *survivor, 1, 2);
    }
    CHECK(emu::counters().live_bytes == survivor->bytes() + 4096);  // and its instructions
    CHECK(emu::counters().closes == 0);
    auto again = machine.open();
    fg::workspace scratch;
    std::vector<float> x(256), y(32);
    const fg::matrix_view<float> out(y.data(), 1, 32);
    const fg::status refused = again.multiply(scratch, *survivor, fg::matrix_view<const float>(x.data(), 1, 256), {&out, 1});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == fg::errc::device_lost);
    survivor.reset();
    CHECK(emu::counters().live_bytes == 0);
    CHECK(emu::counters().closes == 1);
}

// A batch's choices by expert, and the products of chosen experts, on the emulator: the same bits whether a block takes one choice
// or a tile of them.
#if defined(FRUGAL_CUDA_EMULATOR)
#include "frugal/device/cuda/panels/multiply.cuh"
#include "frugal/device/cuda/panels/tiles.cuh"
#include "frugal/ops/moe/group_cuda.cuh"
#else  // on a GPU they are linked
#include "frugal/device/cuda/products.hpp"
#include "frugal/ops/moe/group_cuda.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/quant/panels.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"
#include "weights.hpp"

namespace device = frugal::device;
namespace gpu = frugal::ops::cuda;
namespace quant = frugal::quant;
using device::gpu::choice_tile;
using device::gpu::expert_groups;

namespace {

/// Choices by expert on the device.
struct grouped {
    simt::device_array<std::int32_t> index, order;
    simt::device_array<choice_tile> of_few, of_many;
    expert_groups groups;

    grouped(const std::vector<std::int32_t>& chosen, std::size_t experts)
        : index(chosen),
          order(chosen.size()),
          of_few(expert_groups::most_tiles(chosen.size(), experts, expert_groups::few)),
          of_many(expert_groups::most_tiles(chosen.size(), experts, expert_groups::many)) {
        groups.experts = experts;
        groups.order = order.data();
        groups.of_few = of_few.data();
        groups.of_many = of_many.data();
        test::started(gpu::group_choices(index.data(), chosen.size(), groups, nullptr));
    }
};

/// So many choices of each expert, in a random order.
std::vector<std::int32_t> choices_of(const std::vector<std::size_t>& counts) {
    std::vector<std::int32_t> out;
    for (std::size_t e = 0; e < counts.size(); ++e) out.insert(out.end(), counts[e], static_cast<std::int32_t>(e));
    std::shuffle(out.begin(), out.end(), std::mt19937(7));
    return out;
}

enum class how { alone, by_expert, rounded };  ///< a block for every choice, or for a tile of them, exact or in bfloat16

/// The experts of a layer on the device, and activations that choices share.
template <class Format, class Activations>
struct layer {
    std::size_t rows, cols, share, tokens, groups = (cols + 31) / 32;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<quant::weight_view> views;
    quant::panel_weights packed;
    std::vector<float> x;

    layer(std::size_t experts, std::size_t rows_, std::size_t cols_, std::size_t choices, std::size_t share_)
        : rows(rows_),
          cols(cols_),
          share(share_),
          tokens((choices + share - 1) / share),
          x(test::random_floats(tokens * cols, 9)) {
        for (std::size_t e = 0; e < experts; ++e) {
            bytes.push_back(test::random_weights<Format>(rows, cols, static_cast<std::uint32_t>(e)));
            views.push_back(quant::make_weight_view<quant::all>(Format::type, bytes.back(), rows, cols).value());
        }
        packed = quant::panel_weights::pack<quant::all>(views).value();
    }

    /// Calls start(weights, activations on the device).
    template <class Start>
    void on_device(const std::vector<float>& values, Start&& start) const {
        const auto* from = reinterpret_cast<const unsigned char*>(packed.parts()[0].data);
        simt::device_array<unsigned char> weights(std::vector<unsigned char>(from, from + packed.bytes()));
        const std::size_t count = values.size() / cols;
        std::vector<float> padded(count * groups * 32);
        for (std::size_t t = 0; t < count; ++t) std::copy_n(values.data() + t * cols, cols, padded.data() + t * groups * 32);
        simt::device_array<float> floats(padded), scales(count * groups);
        simt::device_array<std::int8_t> codes(count * groups * 32);
        simt::device_array<std::int16_t> sums(count * groups * 2);
        if constexpr (Activations::quantized)
            test::started(device::gpu::quantize_activations<Activations>(floats.data(), count, groups, codes.data(), sums.data(),
                                                                         scales.data(), nullptr));
        start(reinterpret_cast<const std::byte*>(weights.data()),
              device::gpu::activations{floats.data(), codes.data(), sums.data(), scales.data(), count, groups});
    }

    /// y [choices][rows].
    [[nodiscard]] std::vector<float> multiply(const std::vector<std::int32_t>& chosen, how started) const {
        std::vector<float> out;
        on_device(x, [&](const std::byte* weights, const device::gpu::activations& values) {
            grouped sorted(chosen, views.size());
            simt::device_array<float> y(chosen.size() * rows);
            device::gpu::expert_product product;
            product.panels.weights = weights;
            product.panels.rows = rows;
            product.panels.panel_bytes = packed.parts()[0].panel_bytes;
            product.panels.x = values;
            product.panels.y = y.data();
            product.panels.y_stride = rows;
            product.experts = sorted.index.data();
            product.choices = chosen.size();
            product.share = share;
            if (started != how::alone) product.groups = sorted.groups;
            if (started == how::rounded)
                test::started(device::gpu::multiply_expert_panel_tiles<Format>(product, nullptr));
            else
                test::started(device::gpu::multiply_expert_panels<Format, Activations>(product, nullptr));
            out = y.to_host();
        });
        return out;
    }

    /// What multiply_panels, or multiply_panel_tiles, gives for one choice.
    template <bool Rounded>
    [[nodiscard]] std::vector<float> one(std::size_t choice, std::int32_t expert) const {
        std::vector<float> out;
        const auto at = x.begin() + static_cast<std::ptrdiff_t>(choice / share * cols);
        on_device({at, at + static_cast<std::ptrdiff_t>(cols)},
                  [&](const std::byte* weights, const device::gpu::activations& values) {
                      simt::device_array<float> y(rows);
                      device::gpu::panel_product product;
                      product.weights = weights + static_cast<std::size_t>(expert) * packed.parts()[0].bytes();
                      product.rows = rows;
                      product.panel_bytes = packed.parts()[0].panel_bytes;
                      product.x = values;
                      product.y = y.data();
                      product.y_stride = rows;
                      if constexpr (Rounded)
                          test::started(device::gpu::multiply_panel_tiles<Format>(product, nullptr));
                      else
                          test::started(device::gpu::multiply_panels<Format, Activations>(product, nullptr));
                      out = y.to_host();
                  });
        return out;
    }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class Body>
void for_each_policy(Body&& body) {
    body(frugal::type_tag<device::f32_activations>{});
    body(frugal::type_tag<device::q8_activations>{});
}

/// No choice, one, a full tile, one more than that; choices in the order of tokens of all of them. Many: of more than matrix units
/// take at once, too.
const std::vector<std::size_t> few_counts = {0, 1, 8, 9, 2}, many_counts = {1, 0, 33, 8, 12};

}  // namespace

TEST_CASE("choices by expert: a stable sort, cut into tiles of which an expert has as few as can be") {
    const auto check = [](const std::vector<std::int32_t>& chosen, std::size_t experts) {
        CAPTURE(chosen.size());
        CAPTURE(experts);
        std::vector<std::int32_t> want(chosen.size());
        std::iota(want.begin(), want.end(), 0);
        std::stable_sort(want.begin(), want.end(), [&](std::int32_t a, std::int32_t b) {
            return chosen[static_cast<std::size_t>(a)] < chosen[static_cast<std::size_t>(b)];
        });
        simt::for_each_schedule([&] {
            grouped sorted(chosen, experts);
            CHECK(sorted.order.to_host() == want);
            for (const std::size_t size : {expert_groups::few, expert_groups::many}) {
                const auto tiles = (size == expert_groups::few ? sorted.of_few : sorted.of_many).to_host();
                std::size_t at = 0, tile = 0;
                for (std::size_t e = 0; e < experts; ++e)
                    for (auto left = static_cast<std::size_t>(std::count(chosen.begin(), chosen.end(), static_cast<int>(e)));
                         left != 0; ++tile) {
                        const std::size_t count = std::min(size, left);
                        REQUIRE(tile < tiles.size());
                        CHECK(tiles[tile].expert == static_cast<std::int32_t>(e));
                        CHECK(tiles[tile].first == static_cast<std::int32_t>(at));
                        CHECK(tiles[tile].count == static_cast<std::int32_t>(count));
                        at += count, left -= count;
                    }
                for (; tile < tiles.size(); ++tile) CHECK(tiles[tile].count == 0);
            }
        });
    };
    check({}, 5);
    check({0}, 1);
    check({4, 0, 2, 2, 1, 4}, 5);
    check(choices_of(few_counts), 5);
    check(std::vector<std::int32_t>(700, 3), 8);
    std::mt19937 random(3);
    for (const std::size_t experts : {2u, 33u, 512u}) {
        std::vector<std::int32_t> chosen(1500);
        for (auto& e : chosen) e = static_cast<std::int32_t>(random() % experts);
        check(chosen, experts);
    }
    // A bound that a batch reaches: all experts but one have a single choice.
    CHECK(expert_groups::most_tiles(11, 4, 8) == 4);
    CHECK(expert_groups::most_tiles(3, 512, 8) == 3);
    expert_groups too_many;
    too_many.experts = 513;
    CHECK(gpu::group_choices(nullptr, 1, too_many, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("products of chosen experts have the bits of single ones") {
    const auto check = []<class Format, class Activations>(frugal::type_tag<Format>, frugal::type_tag<Activations>) {
        const std::vector<std::int32_t> chosen = {4, 0, 2, 2, 1, 4};
        for (const std::size_t share : {2u, 1u}) {  // choices share their token's activations, or have their own
            const layer<Format, Activations> l(5, 37, 256, chosen.size(), share);
            simt::for_each_schedule([&] {
                const auto got = l.multiply(chosen, how::alone);
                for (std::size_t i = 0; i < chosen.size(); ++i)
                    CHECK(std::memcmp(got.data() + i * l.rows, l.template one<false>(i, chosen[i]).data(),
                                      l.rows * sizeof(float)) == 0);
            });
        }
    };
    check(frugal::type_tag<quant::q4_k>{}, frugal::type_tag<device::f32_activations>{});
    check(frugal::type_tag<quant::q6_k>{}, frugal::type_tag<device::q8_activations>{});
}

TEST_CASE("by expert they have the same bits, for every format, policy and number of choices") {
    test::for_each_format([&]<class Format>(frugal::type_tag<Format>) {
        for_each_policy([&]<class Activations>(frugal::type_tag<Activations>) {
            CAPTURE(Activations::quantized);
            for (const auto* counts : {&few_counts, &many_counts}) {
                if (counts == &many_counts && !(Activations::quantized && quant::coded_layout<quant::panel_of<Format>>)) continue;
                const auto chosen = choices_of(*counts);
                const layer<Format, Activations> l(5, 21, 512, chosen.size(), counts == &few_counts ? 2 : 1);
                CHECK(same_bits(l.multiply(chosen, how::by_expert), l.multiply(chosen, how::alone)));
            }
        });
    });
}

TEST_CASE("rounded to bfloat16 they have the bits of single ones so rounded") {
    const auto check = []<class Format>(frugal::type_tag<Format>) {
        const auto chosen = choices_of(many_counts);
        const layer<Format, device::f32_activations> l(5, 37, 512, chosen.size(), 2);
        const auto got = l.multiply(chosen, how::rounded);
        CHECK(!same_bits(got, l.multiply(chosen, how::by_expert)));
        for (std::size_t i = 0; i < chosen.size(); ++i)
            CHECK(std::memcmp(got.data() + i * l.rows, l.template one<true>(i, chosen[i]).data(), l.rows * sizeof(float)) == 0);
        CHECK(simt::same_under_all_schedules([&] { return l.multiply(chosen, how::rounded); }, 1));
    };
    check(frugal::type_tag<quant::bf16>{});
    check(frugal::type_tag<quant::q4_k>{});
    check(frugal::type_tag<quant::q6_k>{});
}

TEST_CASE("every order of threads gives the same bits, and a removed __syncthreads is noticed") {
    for_each_policy([&]<class Activations>(frugal::type_tag<Activations>) {
        for (const auto* counts : {&few_counts, &many_counts}) {
            const auto chosen = choices_of(*counts);
            const layer<quant::q5_k, Activations> l(5, 17, 256, chosen.size(), 2);
            CHECK(simt::same_under_all_schedules([&] { return l.multiply(chosen, how::by_expert); }));
        }
        const std::vector<std::int32_t> chosen(9, 1);
        const layer<quant::q4_0, Activations> l(5, 17, 1024, chosen.size(), 1);
        CHECK(test::unnoticed_barriers([&] { return l.multiply(chosen, how::by_expert); }) == std::vector<std::string>{});
    });
    std::vector<std::int32_t> chosen(1500);
    std::mt19937 random(3);
    for (auto& e : chosen) e = static_cast<std::int32_t>(random() % 512);
    CHECK(test::unnoticed_barriers([&] {
              grouped sorted(chosen, 512);
              auto out = sorted.order.to_host();
              for (const auto* tiles : {&sorted.of_few, &sorted.of_many})
                  for (const choice_tile& tile : tiles->to_host()) out.insert(out.end(), {tile.expert, tile.first, tile.count});
              return out;
          }) == std::vector<std::string>{});
}

#if defined(FRUGAL_CUDA_EMULATOR)
TEST_CASE("a full tile reads its expert's weights once") {
    if (!simt::access_checks_active()) return;  // which count accesses
    const std::vector<std::int32_t> chosen = choices_of({8, 8});
    const layer<quant::f32, device::f32_activations> l(2, 16, 1024, chosen.size(), 1);
    const auto accesses = [&](how started) {
        (void)l.multiply(chosen, started);
        return simt::last_launch().checked_accesses;
    };
    // Of the ten loads of a lane for a choice, eight are of weights.
    CHECK(accesses(how::by_expert) < accesses(how::alone) * (8 + 2 * 8 + 4) / (8 * (8 + 2)));
}
#endif

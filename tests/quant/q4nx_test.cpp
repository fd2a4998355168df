// Tile formats against the golden bytes; what encoding loses, what repacking keeps, and what packing refuses.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "frugal/quant/q4nx.hpp"
#include "frugal/quant/q4nx/mxfp4_tile.hpp"
#include "frugal/quant/q4nx/q8nx.hpp"
#include "frugal/quant/q4nx/row_order.hpp"
#include "golden.hpp"
#include "weights.hpp"

namespace quant = frugal::quant;
using frugal::bfloat16;
using frugal::errc;
using frugal::matrix_view;

namespace {

/// Those that some tile repacks, and others.
using formats = quant::list<quant::f32, quant::bf16, quant::q8_0, quant::q4_0, quant::q4_1, quant::q6_k, quant::mxfp4>;

template <class Body>
void for_each_convention(Body&& body) {
    const auto one = [&]<class C>(frugal::type_tag<C> tag) {
        CAPTURE(std::string(C::name));
        body(tag);
    };
    one(frugal::type_tag<quant::q4nx_additive>{});
    one(frugal::type_tag<quant::q4nx_subtractive>{});
    one(frugal::type_tag<quant::q4nx_signed>{});
    one(frugal::type_tag<quant::q4nx_signed_row_scales>{});
    one(frugal::type_tag<quant::q4nx_row_major>{});
}

template <class Body>
void for_each_tile_format(Body&& body) {
    for_each_convention([&]<class C>(frugal::type_tag<C>) { body(frugal::type_tag<quant::q4nx<C>>{}); });
    body(frugal::type_tag<quant::q8nx>{});
    body(frugal::type_tag<quant::q8nx_row_major>{});
    body(frugal::type_tag<quant::mxfp4_tile>{});
}

std::string golden_of(std::string_view convention) {
    return std::string("q4nx/") + (convention == "q4nx"               ? "i8_additive"
                                   : convention == "q4nx_subtractive" ? "dtype_q4nx_subtractive"
                                   : convention == "q4nx_signed"      ? "signed_q4_0"
                                   : convention == "q4nx_row_major"   ? "onebp_row_major"
                                                                      : "zaya_signed_row_scales");
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

template <class T>
std::vector<std::byte> pack(const std::vector<float>& w, std::size_t rows, std::size_t cols) {
    std::vector<std::byte> out(quant::packed_tiles<T>::bytes(rows, cols));
    const auto packed = quant::pack_tiles<T>(matrix_view<const float>(w.data(), rows, cols), out);
    REQUIRE_MESSAGE(packed, packed.error().message);
    return out;
}

template <class T>
std::vector<float> unpack(std::span<const std::byte> tiles, std::size_t rows, std::size_t cols) {
    std::vector<float> out(rows * cols, -77.0f);
    const auto unpacked = quant::unpack_tiles<T>(tiles, rows, cols, matrix_view<float>(out.data(), rows, cols));
    REQUIRE_MESSAGE(unpacked, unpacked.error().message);
    return out;
}

/// Puts the golden matrices of codes, scales and offsets into tiles of T, padding with zeros.
template <class T>
std::vector<std::byte> pack_given(const test::golden& file, std::size_t rows, std::size_t cols) {
    const auto codes = file.get<std::uint8_t>("codes");
    const auto scales = file.get<std::uint16_t>("scale_bf16"), offsets = file.get<std::uint16_t>("offset_bf16");
    std::vector<std::byte> out;
    for (std::size_t row = 0; row < rows; row += 32)
        for (std::size_t col = 0; col < cols; col += 256) {
            typename T::codes_type tile{};
            for (std::size_t r = 0; r < 32; ++r)
                for (std::size_t c = col; c < std::min(col + 256, cols); ++c) {
                    tile.codes[r][c - col] = codes[(row + r) * cols + c];
                    tile.scales[r][(c - col) / 32].bits = scales[((row + r) * cols + c) / 32];
                    tile.offsets[r][(c - col) / 32].bits = offsets[((row + r) * cols + c) / 32];
                }
            out.resize(out.size() + T::tile_bytes);
            T::pack_codes(tile, out.data() + out.size() - T::tile_bytes);
        }
    return out;
}

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

std::vector<float> as_bfloat16(std::vector<float> values) {
    for (float& value : values) value = frugal::to_float(frugal::to_bfloat16(value));
    return values;
}

}  // namespace

TEST_CASE("4-bit tiles have the golden bytes and values") {
    for_each_convention([]<class C>(frugal::type_tag<C>) {
        using tile = quant::q4nx<C>;
        const test::golden file(golden_of(C::name));
        const std::size_t rows = file.params().at("rows"), cols = file.params().at("cols");
        const auto raw = file.get<std::byte>("raw");
        CHECK(pack_given<tile>(file, rows, cols) == raw);
        CHECK(quant::check_tiles<tile>(raw, rows, cols));

        // Values by the convention's own algebra, from the golden codes.
        const auto codes = file.get<std::uint8_t>("codes");
        const auto scales = file.get<std::uint16_t>("scale_bf16"), offsets = file.get<std::uint16_t>("offset_bf16");
        std::vector<float> want(codes.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
            const float scale = frugal::to_float(bfloat16{scales[i / 32]}), offset = frugal::to_float(bfloat16{offsets[i / 32]});
            const int code = C::sign == quant::code_sign::signed_codes && codes[i] > 7 ? codes[i] - 16 : codes[i];
            want[i] = C::algebra == quant::tile_algebra::additive ? static_cast<float>(code) * scale + offset
                                                                  : scale * (static_cast<float>(code) - offset);
        }
        const auto got = unpack<tile>(raw, rows, cols);
        CHECK(same_bits(got, want));
        if (file.has("deq")) CHECK(same_bits(got, file.f32("deq")));

        // Random tiles: every code, scales and offsets of both signs.
        if (!file.has("random_raw")) return;
        const auto random = file.get<std::byte>("random_raw");
        CHECK(same_bits(unpack<tile>(random, 32, 512), file.f32("random_deq")));
        std::vector<std::byte> again(random.size());
        for (std::size_t i = 0; i < random.size(); i += tile::tile_bytes) {
            quant::q4nx_codes parts;
            tile::unpack_codes(random.data() + i, parts);
            tile::pack_codes(parts, again.data() + i);
        }
        CHECK(again == random);
    });
}

TEST_CASE("columns are padded to whole tiles that decode to zero") {
    const test::golden file("q4nx/i8_additive_padded_cols");
    const auto raw = file.get<std::byte>("raw");
    const auto want = file.f32("deq");
    CHECK(pack_given<quant::q4nx<>>(file, 32, 320) == raw);
    CHECK(same_bits(unpack<quant::q4nx<>>(raw, 32, 512), want));
    const auto narrow = unpack<quant::q4nx<>>(raw, 32, 320);
    for (std::size_t r = 0; r < 32; ++r) CHECK(same_bits({narrow.data() + r * 320, 320}, {want.data() + r * 512, 320}));
}

TEST_CASE("8-bit tiles have the golden bytes and values") {
    const auto check = []<class T>(frugal::type_tag<T>, const char* name) {
        const test::golden file(name);
        const std::size_t rows = file.params().at("rows"), cols = file.params().at("cols");
        const auto raw = file.get<std::byte>("raw");
        const auto codes = file.get<std::int8_t>("codes");
        const auto scales = file.get<std::uint16_t>("scale_bf16");
        std::vector<std::byte> got;
        for (std::size_t row = 0; row < rows; row += T::tile_rows)
            for (std::size_t col = 0; col < cols; col += T::tile_cols) {
                typename T::codes_type tile{};
                for (std::size_t r = 0; r < T::tile_rows; ++r)
                    for (std::size_t c = 0; c < T::tile_cols; ++c) {
                        tile.codes[r][c] = codes[(row + r) * cols + col + c];
                        tile.scales[r][c / 32].bits = scales[((row + r) * cols + col + c) / 32];
                    }
                got.resize(got.size() + T::tile_bytes, std::byte{0xAA});
                T::pack_codes(tile, got.data() + got.size() - T::tile_bytes);
            }
        CHECK(got == raw);
        std::vector<float> want(codes.size());
        for (std::size_t i = 0; i < want.size(); ++i)
            want[i] = static_cast<float>(codes[i]) * frugal::to_float(bfloat16{scales[i / 32]});
        const auto values = unpack<T>(raw, rows, cols);
        CHECK(std::equal(values.begin(), values.end(), want.begin()));
        if (file.has("deq")) CHECK(values == file.f32("deq"));
    };
    check(frugal::type_tag<quant::q8nx>{}, "q4nx/q8_in_5120");
    check(frugal::type_tag<quant::q8nx_row_major>{}, "q4nx/q8_8704");
}

TEST_CASE("MXFP4 tiles have the golden bytes and values") {
    const test::golden file("q4nx/mxfp4_tile");
    const std::size_t rows = file.params().at("rows"), cols = file.params().at("cols");
    const auto raw = file.get<std::byte>("raw");
    const auto codes = file.get<std::uint8_t>("codes"), exponents = file.get<std::uint8_t>("exponent");
    std::vector<std::byte> got;
    for (std::size_t row = 0; row < rows; row += 32)
        for (std::size_t col = 0; col < cols; col += 128) {
            quant::mxfp4_tile_codes tile{};
            for (std::size_t r = 0; r < 32; ++r)
                for (std::size_t c = 0; c < 128; ++c) {
                    tile.codes[r][c] = codes[(row + r) * cols + col + c];
                    tile.exponents[r][c / 32] = exponents[((row + r) * cols + col + c) / 32];
                }
            got.resize(got.size() + quant::mxfp4_tile::tile_bytes, std::byte{0xAA});
            quant::mxfp4_tile::pack_codes(tile, got.data() + got.size() - quant::mxfp4_tile::tile_bytes);
        }
    CHECK(got == raw);
    const auto values = file.f32("deq");
    CHECK(same_bits(unpack<quant::mxfp4_tile>(raw, rows, cols), values));
    // What MXFP4 holds comes back from floats.
    CHECK(unpack<quant::mxfp4_tile>(pack<quant::mxfp4_tile>(values, rows, cols), rows, cols) == values);
}

TEST_CASE("encoding errs no more than the documented bounds") {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    constexpr std::size_t rows = 32, cols = 256;
    std::vector<std::vector<float>> cases;
    for (const float scale : {1e-30f, 0.05f, 1.0f, 1e30f})
        for (const float offset : {0.0f, 1.0f, -3.0f, 100.0f, -1000.0f}) {
            std::vector<float> w(rows * cols);
            for (float& value : w) value = (normal(random) + offset) * scale;
            w[300] = 40.0f * scale;
            cases.push_back(as_bfloat16(w));
            cases.push_back(std::move(w));
        }
    std::vector<float> edges(rows * cols), constant(rows * cols), both(rows * cols);
    for (std::size_t i = 0; i < edges.size(); ++i) {
        edges[i] = std::ldexp(normal(random) < 0.0f ? -1.0f : 1.0f, static_cast<int>(126 - i / 32 % 200));
        constant[i] = 1.0f + static_cast<float>(i / 32) * 0.1f;
        both[i] = i % 2 == 0 ? -0.3f : 0.3f;
    }
    cases.insert(cases.end(), {edges, constant, both});

    for_each_tile_format([&]<class T>(frugal::type_tag<T>) {
        for (std::size_t k = 0; k < cases.size(); ++k) {
            CAPTURE(k);
            const std::vector<float>& w = cases[k];
            const auto back = unpack<T>(pack<T>(w, rows, cols), rows, cols);
            for (std::size_t g = 0; g < w.size(); g += 32) {
                const auto [lo, hi] = std::minmax_element(w.data() + g, w.data() + g + 32);
                const double least = static_cast<double>(*lo), most = static_cast<double>(*hi);
                const double magnitude = std::max(std::abs(least), std::abs(most));
                double bound = 0x1p-120;  // scales lose bits below 2^-126
                if constexpr (T::name == "q4nx" || T::name == "q4nx_row_major")
                    bound += (most - least + std::abs(least) / 128) / 30 * (1 + 1.0 / 256) + magnitude * 0x1p-23;
                else if constexpr (T::name == "q4nx_subtractive")
                    bound += 9.0 / 16 * (std::max(most, 0.0) - std::min(least, 0.0)) / 15 * (1 + 1.0 / 256);
                else if constexpr (T::name == "mxfp4_tile")
                    bound += magnitude / 4;  // 7 is nearest to 6; scales are powers of two
                else if constexpr (T::tile_bytes == 5120 && T::tile_cols == 256)
                    bound += magnitude / 8 * (1 + 1.0 / 128);
                else
                    bound += magnitude / 254 * (1 + 1.0 / 128);
                double worst = 0;
                for (std::size_t i = g; i < g + 32; ++i)
                    worst = std::max(worst, std::abs(static_cast<double>(back[i]) - static_cast<double>(w[i])));
                REQUIRE_MESSAGE(worst <= bound, std::string(T::name), ": ", worst, " > ", bound, " in [", least, ", ", most, "]");
            }
        }
    });
}

TEST_CASE("weights that a tile can hold come back exactly") {
    std::mt19937 random(9);
    constexpr std::size_t rows = 64, cols = 512;
    const auto bits = [&] { return frugal::to_float(bfloat16{static_cast<std::uint16_t>((random() & 0x80FFu) | 0x3D00u)}); };
    for_each_convention([&]<class C>(frugal::type_tag<C>) {
        constexpr bool is_signed = C::sign == quant::code_sign::signed_codes;
        constexpr bool additive = C::algebra == quant::tile_algebra::additive && !is_signed;
        std::vector<float> w(rows * cols);
        // Every number of levels, from one to sixteen, spread over all scales and offsets.
        for (std::size_t g = 0; g < w.size() / 32; ++g) {
            const int levels = static_cast<int>(g % 16) + 1;
            const float scale = additive ? std::abs(bits()) : bits();
            const float offset = bits();
            const int first = static_cast<int>(random() % static_cast<unsigned>(17 - levels));
            for (std::size_t i = 0; i < 32; ++i) {
                int code = static_cast<int>(random() % static_cast<unsigned>(levels));
                if (!additive) code += first - 8;
                if (additive && i == 0) code = 0;
                w[g * 32 + i] = scale * static_cast<float>(code) + (additive ? offset : 0.0f);
            }
        }
        CHECK(unpack<quant::q4nx<C>>(pack<quant::q4nx<C>>(w, rows, cols), rows, cols) == w);
        // Small whole numbers, three values, one value, none.
        for (const int most : {7, 3, 1, 0}) {
            for (float& value : w)
                value = static_cast<float>(static_cast<int>(random() % static_cast<unsigned>(2 * most + 1)) - most);
            CHECK(unpack<quant::q4nx<C>>(pack<quant::q4nx<C>>(w, rows, cols), rows, cols) == w);
        }
        if constexpr (additive) {
            w.assign(w.size(), -2.5f);
            CHECK(unpack<quant::q4nx<C>>(pack<quant::q4nx<C>>(w, rows, cols), rows, cols) == w);
        }
    });
    // Random steps seldom need the search: most groups here use the first and the last code.
    const test::golden file("q4nx/i8_additive");
    const auto raw = file.get<std::byte>("raw");
    const auto values = unpack<quant::q4nx<>>(raw, 96, 512);
    CHECK(unpack<quant::q4nx<>>(pack<quant::q4nx<>>(values, 96, 512), 96, 512) == values);
    // Eight bits.
    std::vector<float> w(rows * cols);
    for (std::size_t i = 0; i < w.size(); ++i)
        w[i] = i % 32 == 5 ? 127.0f * 0.375f : 0.375f * static_cast<float>(static_cast<int>(random() % 255) - 127);
    CHECK(unpack<quant::q8nx>(pack<quant::q8nx>(w, rows, cols), rows, cols) == w);
    CHECK(unpack<quant::q8nx_row_major>(pack<quant::q8nx_row_major>(w, rows, cols), rows, cols) == w);
}

namespace {

/// Packs blocks of F into tiles of T and compares with the values that keeping the codes gives.
template <class T, class F, class Value>
void check_repacked(std::uint32_t seed, Value value) {
    constexpr std::size_t rows = 40, cols = 288;  // both need padding
    const auto blocks = test::random_weights<F>(rows, cols, seed);
    const auto view = quant::make_weight_view<formats>(F::type, blocks, rows, cols);
    REQUIRE(view);
    std::vector<std::byte> tiles(quant::packed_tiles<T>::bytes(rows, cols), std::byte{0x55});
    const auto packed = quant::pack_tiles<T, formats>(*view, tiles);
    REQUIRE_MESSAGE(packed, packed.error().message);
    std::vector<float> want(rows * cols);
    for (std::size_t i = 0; i < want.size(); ++i) {
        const auto block = F::unpack(blocks.data() + i / 32 * F::block_bytes);
        want[i] = value(block, i % 32);
    }
    CHECK(unpack<T>(tiles, rows, cols) == want);
    const std::size_t padded_rows = 64, padded_cols = (cols + T::tile_cols - 1) / T::tile_cols * T::tile_cols;
    const auto padded = unpack<T>(tiles, padded_rows, padded_cols);
    for (std::size_t r = 0; r < padded_rows; ++r)
        for (std::size_t c = 0; c < padded_cols; ++c)
            if (r >= rows || c >= cols) REQUIRE(padded[r * padded_cols + c] == 0.0f);
}

float brief(float value) { return frugal::to_float(frugal::to_bfloat16(value)); }

}  // namespace

TEST_CASE("repacking keeps the codes of a block") {
    const auto centred = [](const auto& block, std::size_t i) { return brief(block.scale) * static_cast<float>(block.codes[i]); };
    const auto offset = [](const auto& block, std::size_t i) {
        return brief(block.scale) * static_cast<float>(block.codes[i]) + brief(block.offset_scale);
    };
    check_repacked<quant::q4nx<>, quant::q4_1>(1, offset);
    check_repacked<quant::q4nx<quant::q4nx_row_major>, quant::q4_1>(2, offset);
    check_repacked<quant::q4nx<quant::q4nx_signed>, quant::q4_0>(3, centred);
    check_repacked<quant::q4nx<quant::q4nx_signed_row_scales>, quant::q4_0>(4, centred);
    check_repacked<quant::q4nx<>, quant::q4_0>(5, centred);
    check_repacked<quant::q4nx<quant::q4nx_subtractive>, quant::q4_0>(6, centred);
    check_repacked<quant::q8nx, quant::q8_0>(7, centred);
    check_repacked<quant::q8nx_row_major, quant::q8_0>(8, centred);
    check_repacked<quant::mxfp4_tile, quant::mxfp4>(
        9, [](const auto& block, std::size_t i) { return block.scale * static_cast<float>(block.codes[i]); });
}

TEST_CASE("weights of several formats are stacked; what is not repacked is decoded and encoded") {
    constexpr std::size_t cols = 512;
    const auto a = test::random_weights<quant::q4_1>(20, cols, 1);
    const auto b = test::random_weights<quant::q6_k>(50, cols, 2);
    const auto c = test::random_weights<quant::bf16>(1, cols, 3);
    const auto d = test::random_weights<quant::q4_0>(30, cols, 4);
    const auto view = [&](quant::type_id type, const std::vector<std::byte>& data, std::size_t rows) {
        return quant::make_weight_view<formats>(type, data, rows, cols).value();
    };
    const quant::weight_view nothing{quant::f32::type, nullptr, 0, cols, cols * 4};
    const std::vector<quant::weight_view> parts = {view(quant::q4_1::type, a, 20), nothing, view(quant::q6_k::type, b, 50),
                                                   view(quant::bf16::type, c, 1), view(quant::q4_0::type, d, 30)};
    for_each_tile_format([&]<class T>(frugal::type_tag<T>) {
        std::vector<std::byte> tiles(quant::packed_tiles<T>::bytes(101, cols));
        REQUIRE(quant::pack_tiles<T, formats>(std::span<const quant::weight_view>(parts), tiles));
        const auto got = unpack<T>(tiles, 101, cols);
        // Each row alone, by the path of its own format.
        std::size_t row = 0;
        for (const auto& part : parts)
            for (std::size_t r = 0; r < part.rows; ++r, ++row) {
                std::vector<std::byte> alone(quant::packed_tiles<T>::bytes(1, cols));
                REQUIRE(quant::pack_tiles<T, formats>(part.rows_range(r, 1), alone));
                const auto want = unpack<T>(alone, 1, cols);
                REQUIRE(same_bits({got.data() + row * cols, cols}, want));
                if (part.type == quant::q6_k::type || part.type == quant::bf16::type) {
                    const auto values = quant::dequantize<formats>(part.rows_range(r, 1));
                    REQUIRE(same_bits(want, unpack<T>(pack<T>(*values, 1, cols), 1, cols)));
                }
            }
        CHECK(row == 101);
    });
}

TEST_CASE("matrices of floats are stacked, strided, padded, and packed in any ranges") {
    constexpr std::size_t cols = 700, stride = 711;
    const auto values = test::random_floats(100 * stride, 5);
    const std::vector<matrix_view<const float>> parts = {{values.data(), 33, cols, stride},
                                                         {values.data() + 33 * stride, 0, cols, stride},
                                                         {values.data() + 33 * stride, 67, cols, stride}};
    std::vector<float> dense(100 * cols);
    for (std::size_t r = 0; r < 100; ++r) std::copy_n(values.data() + r * stride, cols, dense.data() + r * cols);
    for_each_tile_format([&]<class T>(frugal::type_tag<T>) {
        const auto want = pack<T>(dense, 100, cols);
        std::vector<std::byte> got(want.size(), std::byte{1});
        for (const std::size_t first : {2u, 0u, 3u, 1u}) REQUIRE(quant::pack_tiles<T>(parts, got, {first, 1}));
        CHECK(got == want);
        REQUIRE(quant::pack_tiles<T>(parts, got, {4, 10}));  // there is no fifth row of tiles
        CHECK(got == want);
        // Padding: one row, one column; the tile is otherwise zero.
        const auto single = unpack<T>(pack<T>({1.5f}, 1, 1), T::tile_rows, T::tile_cols);
        CHECK(single[0] == doctest::Approx(1.5).epsilon(0.01));
        CHECK(std::all_of(single.begin() + 1, single.end(), [](float value) { return value == 0.0f; }));
        CHECK(pack<T>({}, 0, 300).empty());
        CHECK(pack<T>({}, 300, 0).empty());
        // A window of a larger matrix, neither row nor column of which is touched outside.
        std::vector<float> frame(102 * stride, 9.0f);
        REQUIRE(quant::unpack_tiles<T>(want, 100, cols, {frame.data() + stride + 3, 100, cols, stride}));
        const auto plain = unpack<T>(want, 100, cols);
        for (std::size_t r = 0; r < 102; ++r)
            for (std::size_t c = 0; c < stride; ++c) {
                const bool inside = r >= 1 && r <= 100 && c >= 3 && c < cols + 3;
                REQUIRE(frame[r * stride + c] == (inside ? plain[(r - 1) * cols + c - 3] : 9.0f));
            }
    });
}

namespace {

/// Blocks that do not divide a tile, nor a group.
struct twenty {
    static constexpr std::string_view name = "twenty";
    static constexpr quant::type_id type{0x10001};
    static constexpr std::size_t block_size = 20, block_bytes = 20;
    static void decode(const std::byte* block, float* out) noexcept {
        for (std::size_t i = 0; i < 20; ++i) out[i] = static_cast<float>(static_cast<int>(block[i]) % 15);
    }
};

}  // namespace

TEST_CASE("formats of the consumer are packed whatever their blocks") {
    std::mt19937 random(4);
    std::vector<std::byte> data(33 * 280);
    for (auto& byte : data) byte = static_cast<std::byte>(random() & 0xFFu);
    using own = quant::list<quant::q8_0, twenty>;
    const auto view = quant::make_weight_view<own>(twenty::type, data, 33, 280);
    REQUIRE(view);
    std::vector<std::byte> tiles(quant::packed_tiles<quant::q4nx<>>::bytes(33, 280));
    REQUIRE(quant::pack_tiles<quant::q4nx<>, own>(*view, tiles));
    CHECK(unpack<quant::q4nx<>>(tiles, 33, 280) == *quant::dequantize<own>(*view));
}

TEST_CASE("C41 weights that are not finite are refused, naming row and column") {
    const auto message = [](const frugal::status& status, errc code) {
        REQUIRE(!status);
        CHECK(status.error().code == code);
        return status.error().message;
    };
    for_each_tile_format([&]<class T>(frugal::type_tag<T>) {
        for (const float bad : {not_a_number, -not_a_number, infinite, -infinite, 1e38f, -3.4e38f})
            for (const auto& [row, col] : {std::pair{0u, 0u}, std::pair{31u, 255u}, std::pair{40u, 299u}, std::pair{69u, 127u}}) {
                auto values = test::random_floats(70 * 300, 6);
                values[row * 300 + col] = bad;
                std::vector<std::byte> tiles(quant::packed_tiles<T>::bytes(70, 300));
                const std::string where = "row " + std::to_string(row) + ", column " + std::to_string(col) + " ";
                const matrix_view<const float> matrix(values.data(), 70, 300);
                const auto text = message(quant::pack_tiles<T>(matrix, tiles), errc::not_finite);
                CHECK_MESSAGE(text.find(where) != std::string::npos, text);
                const quant::weight_view view{quant::f32::type, reinterpret_cast<const std::byte*>(values.data()), 70, 300, 1200};
                const auto other = message(quant::pack_tiles<T, formats>(view, tiles), errc::not_finite);
                CHECK_MESSAGE(other.find(where) != std::string::npos, other);
            }
        // The largest weights that are allowed stay finite.
        std::vector<float> large(32 * 256, quant::largest_weight);
        for (std::size_t i = 0; i < large.size(); i += 2) large[i] = -quant::largest_weight;
        const auto tiles = pack<T>(large, 32, 256);
        CHECK(quant::check_tiles<T>(tiles, 32, 256));
        for (const float value : unpack<T>(tiles, 32, 256)) REQUIRE(std::isfinite(value));
    });
    // A scale in a file.
    auto blocks = test::random_weights<quant::q4_1>(3, 512, 1);
    const std::uint16_t half_infinity = 0x7C00;
    std::memcpy(blocks.data() + (16 + 9) * 20 + 2, &half_infinity, 2);
    std::vector<std::byte> tiles(quant::packed_tiles<quant::q4nx<>>::bytes(3, 512));
    const auto text = message(
        quant::pack_tiles<quant::q4nx<>, formats>(quant::weight_view{quant::q4_1::type, blocks.data(), 3, 512, 320}, tiles),
        errc::not_finite);
    CHECK_MESSAGE(text.find("row 1, column 288 ") != std::string::npos, text);
}

TEST_CASE("tiles with a scale or offset that is not finite are found") {
    for_each_tile_format([]<class T>(frugal::type_tag<T>) {
        std::vector<std::byte> tiles(4 * T::tile_bytes);
        CHECK(quant::check_tiles<T>(tiles, 2 * T::tile_rows, 2 * T::tile_cols));
        const bool bytes = T::name == "mxfp4_tile";
        const std::size_t fields = bytes ? 128 : T::tile_bytes == 8704 || T::tile_cols == 128 ? T::tile_cols / 32 * 64 : 1024;
        for (std::size_t at = 0; at < fields; at += bytes ? 1 : 2) {
            auto broken = tiles;
            const std::uint16_t value = bytes ? 0xFF : at % 4 == 0 ? 0x7F80 : 0xFFC1;
            std::memcpy(broken.data() + 3 * T::tile_bytes + at, &value, bytes ? 1 : 2);
            const auto checked = quant::check_tiles<T>(broken, 2 * T::tile_rows, 2 * T::tile_cols);
            REQUIRE(!checked);
            REQUIRE(checked.error().code == errc::not_finite);
            REQUIRE(checked.error().message.find("row 32, column " + std::to_string(T::tile_cols)) != std::string::npos);
        }
    });
}

TEST_CASE("shapes that do not fit are errors") {
    using tile = quant::q4nx<>;
    using sizes = quant::packed_tiles<tile>;
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    static_assert(sizes::tile_count(33, 257) == 4 && sizes::bytes(32, 256) == 5120 && sizes::bytes(0, 5) == 0);
    static_assert(sizes::row_tiles(most) == most / 32 + 1 && sizes::bytes(most, most) == most);
    std::vector<float> w(64 * 256);
    std::vector<std::byte> tiles(sizes::bytes(64, 256));
    const auto code = [](const frugal::status& status) {
        REQUIRE(!status);
        return status.error().code;
    };
    const std::vector<matrix_view<const float>> ragged = {{w.data(), 32, 256}, {w.data(), 32, 255}};
    const std::vector<matrix_view<const float>> huge = {{w.data(), most / 2, 256}, {w.data(), most / 2 + 1, 256}};
    CHECK(code(quant::pack_tiles<tile>(ragged, tiles)) == errc::shape_mismatch);
    CHECK(code(quant::pack_tiles<tile>(huge, tiles)) == errc::shape_mismatch);
    CHECK(code(quant::pack_tiles<tile>(matrix_view<const float>(w.data(), 65, 256), tiles)) == errc::shape_mismatch);
    CHECK(code(quant::pack_tiles<tile>(matrix_view<const float>(w.data(), 32, 256), tiles)) == errc::shape_mismatch);
    const auto pack_view = [&](quant::type_id type, const std::byte* data, std::size_t row_bytes) {
        return code(quant::pack_tiles<tile, quant::list<quant::q8_0>>(quant::weight_view{type, data, 64, 256, row_bytes}, tiles));
    };
    CHECK(pack_view(quant::f32::type, tiles.data(), 1024) == errc::unsupported_format);
    CHECK(pack_view(quant::q8_0::type, tiles.data(), 271) == errc::shape_mismatch);
    CHECK(pack_view(quant::q8_0::type, nullptr, 272) == errc::invalid_argument);
    CHECK(code(quant::unpack_tiles<tile>(tiles, 64, 257, {w.data(), 64, 257})) == errc::shape_mismatch);
    CHECK(code(quant::unpack_tiles<tile>(tiles, 64, 256, {w.data(), 64, 255, 256})) == errc::shape_mismatch);
    CHECK(code(quant::unpack_tiles<tile>(tiles, most, most, {w.data(), most, most})) == errc::shape_mismatch);
    CHECK(code(quant::check_tiles<tile>(tiles, 65, 256)) == errc::shape_mismatch);
}

TEST_CASE("rows are reordered as containers of Qwen3.5 have them") {
    const test::golden file("q4nx/qwen35_row_orders");
    const auto check = [&](const std::string& name, std::size_t outer, std::size_t inner) {
        CAPTURE(name);
        const auto want = file.i64(name);
        std::vector<float> rows(want.size());
        for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
        const matrix_view<const float> whole(rows.data(), rows.size(), 1);
        const auto parts = quant::transpose_row_blocks(whole, outer, inner);
        REQUIRE(parts);
        std::vector<std::int64_t> got;
        for (const auto& part : *parts)
            for (std::size_t r = 0; r < part.rows(); ++r) got.push_back(static_cast<std::int64_t>(part(r, 0)));
        CHECK(got == want);
    };
    check("gguf_from_hf_k2_r2_d4", 2, 2);
    check("gguf_from_hf_k16_r2_d128", 16, 2);
    check("gguf_from_hf_k4_r3_d2", 4, 3);
    check("q4nx_from_gguf_k2_r2_d4", 2, 2);
    check("q4nx_from_gguf_k16_r2_d128", 2, 16);
    check("q4nx_q_gate_split_h4_d8", 4, 2);
    check("q4nx_q_gate_split_h8_d256", 8, 2);
    // Packing the parts packs the reordered matrix.
    const auto weights = test::random_weights<quant::q4_1>(48, 256, 1);
    const auto view = quant::make_weight_view<formats>(quant::q4_1::type, weights, 48, 256);
    const auto parts = quant::transpose_row_blocks(*view, 6, 2);
    REQUIRE(parts);
    std::vector<std::byte> tiles(quant::packed_tiles<quant::q4nx<>>::bytes(48, 256)), plain(tiles.size());
    REQUIRE(quant::pack_tiles<quant::q4nx<>, formats>(std::span<const quant::weight_view>(*parts), tiles));
    REQUIRE(quant::pack_tiles<quant::q4nx<>, formats>(*view, plain));
    const auto got = unpack<quant::q4nx<>>(tiles, 48, 256), whole = unpack<quant::q4nx<>>(plain, 48, 256);
    for (std::size_t r = 0; r < 48; ++r) {
        const std::size_t from = (r / 4 % 6 * 2 + r / 24) * 4 + r % 4;
        CHECK(same_bits({got.data() + r * 256, 256}, {whole.data() + from * 256, 256}));
    }
    CHECK(!quant::transpose_row_blocks(*view, 5, 2));
    CHECK(!quant::transpose_row_blocks(*view, 0, 2));
    CHECK(!quant::transpose_row_blocks(*view, 24, 4));
}

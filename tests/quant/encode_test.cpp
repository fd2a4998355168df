// Encoders against the golden bytes, tiny and broken inputs, and the codec's row functions.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "golden.hpp"
#include "weights.hpp"

namespace quant = frugal::quant;
using frugal::errc;

namespace {

template <class F>
std::vector<std::byte> encode(const std::vector<float>& values) {
    std::vector<std::byte> out(values.size() / F::block_size * F::block_bytes);
    for (std::size_t b = 0; b < values.size() / F::block_size; ++b)
        F::encode(values.data() + b * F::block_size, out.data() + b * F::block_bytes);
    return out;
}

template <class F>
std::vector<float> decode(const std::vector<std::byte>& bytes) {
    std::vector<float> out(bytes.size() / F::block_bytes * F::block_size);
    quant::decode_row<F>(bytes.data(), out.size(), out.data());
    return out;
}

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("encoders write the golden bytes") {
    std::size_t encoders = 0;
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        if constexpr (quant::encodable_format<F> && !std::is_same_v<F, quant::f32>) {
            ++encoders;
            const test::golden file("gguf/" + std::string(F::name));
            const auto x = file.f32("x");
            const auto want = file.get<std::byte>("raw");
            const auto labels = file.params().at("row_labels").get<std::vector<std::string>>();
            const std::size_t cols = file.params().at("row_elements").get<std::size_t>(), row_bytes = want.size() / labels.size();
            for (std::size_t r = 0; r < labels.size(); ++r) {
                CAPTURE(labels[r]);
                std::vector<std::byte> got(row_bytes);
                REQUIRE(quant::encode_row<F>({x.data() + r * cols, cols}, got));
                const bool equal = std::memcmp(got.data(), want.data() + r * row_bytes, row_bytes) == 0;
                if (std::is_same_v<F, quant::mxfp4> && labels[r] == "fp32_subnormal") {
                    // The reference's exponent wraps around to a scale byte near 250 there; frugal stores scale byte 0.
                    CHECK(!equal);
                    for (std::size_t b = 0; b < row_bytes; ++b) CHECK(got[b] == std::byte{0});
                    continue;
                }
                CHECK(equal);
            }
        }
    });
    CHECK(encoders == 8);
}

TEST_CASE("C41 vanishing blocks decode to exactly zero and no scale is ever NaN") {
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        if constexpr (quant::encodable_format<F> && F::block_size > 1) {
            std::vector<std::vector<float>> rows;
            for (const float tiny : {0.0f, -0.0f, 1e-38f, -1e-38f, 1e-41f, -1e-41f, 1e-45f}) {
                rows.emplace_back(256, tiny);
                std::vector<float> mixed(256);
                for (std::size_t i = 0; i < 256; ++i) mixed[i] = i % 3 == 0 ? tiny : i % 3 == 1 ? -tiny : 0.0f;
                rows.push_back(mixed);
            }
            for (const auto& row : rows) {
                const auto bytes = encode<F>(row);
                CHECK(quant::all_finite<F>(bytes.data(), row.size()));
                for (const float value : decode<F>(bytes)) {
                    REQUIRE(value == 0.0f);
                }
                std::vector<std::byte> checked(bytes.size());
                CHECK(quant::encode_row<F>(row, checked));
                CHECK(checked == bytes);
            }
            // One 1e-8 among zeros: below half of the least half, unless the scale is a power of two of its own.
            for (const std::size_t at : {0u, 77u, 255u}) {
                std::vector<float> row(256);
                row[at] = 1e-8f;
                const auto bytes = encode<F>(row);
                CHECK(quant::all_finite<F>(bytes.data(), row.size()));
                const auto back = decode<F>(bytes);
                for (std::size_t i = 0; i < 256; ++i) {
                    if (i != at) CHECK(back[i] == 0.0f);
                    if (i == at && !std::is_same_v<F, quant::mxfp4>) CHECK(back[i] == 0.0f);
                    if (i == at && std::is_same_v<F, quant::mxfp4>) CHECK(back[i] == doctest::Approx(1e-8).epsilon(0.25));
                }
            }
        }
    });
}

TEST_CASE("C41 NaN in the input: the block encoder takes it for zero, encode_row refuses it") {
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        if constexpr (quant::encodable_format<F> && F::block_size > 1) {
            auto row = test::random_floats(256, 12);
            auto zeroed = row;
            for (const std::size_t at : {0u, 40u, 95u}) row[at] = not_a_number, zeroed[at] = 0.0f;
            CHECK(encode<F>(row) == encode<F>(zeroed));
            CHECK(quant::all_finite<F>(encode<F>(row).data(), row.size()));
            CHECK(encode<F>(std::vector<float>(256, not_a_number)) == encode<F>(std::vector<float>(256, 0.0f)));
            std::vector<std::byte> out(256 / F::block_size * F::block_bytes);
            CHECK(quant::encode_row<F>(row, out).error().code == errc::not_finite);
            for (const float bad : {infinite, -infinite}) {
                auto one_bad = zeroed;
                one_bad[33] = bad;
                CHECK(quant::encode_row<F>(one_bad, out).error().code == errc::not_finite);
            }
            // Beyond what a half scale holds; MXFP4's scale reaches as far as binary32.
            auto large = zeroed;
            large[33] = 3e38f;
            const auto status = quant::encode_row<F>(large, out);
            if (std::is_same_v<F, quant::mxfp4>) {
                CHECK(status.has_value());
            } else {
                REQUIRE(!status);
                CHECK(status.error().code == errc::not_finite);
            }
            for (std::size_t b = 0; b < out.size() / F::block_bytes; ++b)
                if (!std::is_same_v<F, quant::mxfp4>)
                    CHECK((quant::detail::load_u16(out.data() + b * F::block_bytes) & 0x7FFFu) <= 0x7C00u);
        } else if constexpr (quant::encodable_format<F>) {
            // Formats without blocks keep what they are given.
            std::vector<std::byte> out(3 * F::block_bytes);
            REQUIRE(quant::encode_row<F>(std::vector<float>{not_a_number, -infinite, 1.0f}, out));
            const auto back = decode<F>(out);
            CHECK(std::isnan(back[0]));
            CHECK(back[1] == -infinite);
            CHECK(back[2] == 1.0f);
        }
    });
}

TEST_CASE("C41 a NaN or infinite scale in a file is reported with its row") {
    constexpr std::size_t rows = 5, cols = 512;
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        auto bytes = test::random_weights<F>(rows, cols, 77);
        const auto w = quant::make_weight_view<quant::all>(F::type, bytes, rows, cols);
        REQUIRE(w.has_value());
        CHECK(quant::check_finite<quant::all>(*w));
        // Where the halves lie in a block; formats without a half are handled below.
        std::vector<std::size_t> halves;
        const std::string name(F::name);
        if (name == "q6_k") halves = {208};
        else if (name == "q4_1" || name == "q5_1" || name == "q4_k" || name == "q5_k") halves = {0, 2};
        else if (name != "f32" && name != "bf16" && name != "mxfp4") halves = {0};
        const std::size_t block = 3 * w->row_bytes + (cols / F::block_size - 1) * F::block_bytes;  // last block of row 3
        const auto original = bytes;
        const auto expect_report = [&] {
            const auto status = quant::check_finite<quant::all>(*w);
            REQUIRE(!status);
            CHECK(status.error().code == errc::not_finite);
            CHECK(status.error().message.find("row 3") != std::string::npos);
            CHECK(status.error().message.find(name) != std::string::npos);
            CHECK(!quant::all_finite<F>(w->row(3), cols));
            CHECK(quant::all_finite<F>(w->row(4), cols));
            bytes = original;
        };
        for (const std::size_t at : halves)
            for (const unsigned bits : {0x7C00u, 0xFC00u, 0x7E00u, 0xFC01u, 0x7FFFu}) {
                std::memcpy(bytes.data() + block + at, &bits, 2);
                expect_report();
            }
        if (name == "f32" || name == "bf16")
            for (const unsigned bits : {0x7F80u, 0xFF80u, 0x7FC0u, 0xFFFFu}) {
                std::memcpy(bytes.data() + block + F::block_bytes - 2, &bits, 2);
                expect_report();
            }
    });
}

TEST_CASE("row functions check lengths, types and names") {
    CHECK(*quant::row_bytes<quant::all>(quant::q4_k::type, 512) == 288);
    CHECK(quant::row_bytes<quant::all>(quant::q4_k::type, 500).error().code == errc::shape_mismatch);
    CHECK(quant::row_bytes<quant::all>(quant::type_id{5}, 512).error().code == errc::unsupported_format);
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    CHECK(quant::row_bytes<quant::all>(quant::f32::type, most).error().code == errc::out_of_memory);
    test::for_each_format([&]<class F>(frugal::type_tag<F>) {
        CHECK(*quant::name_of<quant::all>(F::type) == F::name);
        CHECK(*quant::row_bytes<quant::all>(F::type, 4 * F::block_size) == 4 * F::block_bytes);
    });
    CHECK(quant::name_of<quant::list<quant::f32>>(quant::f16::type).error().code == errc::unsupported_format);
    std::vector<std::byte> out(34);
    CHECK(quant::encode_row<quant::q8_0>(std::vector<float>(33), out).error().code == errc::shape_mismatch);
    CHECK(quant::encode_row<quant::q8_0>(std::vector<float>(64), out).error().code == errc::shape_mismatch);
    const auto cut = std::span<std::byte>(out).first(33);
    CHECK(quant::encode_row<quant::q8_0>(std::vector<float>(32), cut).error().code == errc::shape_mismatch);
    CHECK(quant::encode_row<quant::q8_0>(std::vector<float>(32), out));
    CHECK(quant::make_weight_view<quant::all>(quant::q8_0::type, out, 1, 32));
    CHECK(quant::make_weight_view<quant::all>(quant::q8_0::type, out, 2, 32).error().code == errc::shape_mismatch);
    CHECK(quant::make_weight_view<quant::all>(quant::q8_0::type, std::span<std::byte>(out).first(33), 1, 32).error().code ==
          errc::shape_mismatch);
    CHECK(quant::make_weight_view<quant::all>(quant::q8_0::type, out, std::numeric_limits<std::size_t>::max(), 32).error().code ==
          errc::shape_mismatch);
}

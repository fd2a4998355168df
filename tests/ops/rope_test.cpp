#include "frugal/ops/rope/rope.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using fg::matrix_view;

namespace {

const char* const cases[] = {"hd256_rot64_text", "hd256_rot64_mrope", "hd64_rot16_text",
                             "hd64_rot16_mrope", "hd32_full_text",    "hd32_full_mrope"};

ops::rope_table table_of(const test::golden& file) {
    const auto& params = file.params();
    return ops::rope_table::make(params.at("theta").get<double>(), params.at("rotary_dim").get<std::size_t>(),
                                 params.at("mrope_section").get<std::array<int, 3>>(), params.at("interleaved").get<bool>());
}

ops::rope_scaling must(fg::result<ops::rope_scaling> r) {
    REQUIRE(r.has_value());
    return *std::move(r);
}

std::vector<ops::rope_position> positions_of(const test::golden& file) {
    const auto all = file.i64("positions");  // [3, 1, n]
    const std::size_t n = all.size() / 3;
    std::vector<ops::rope_position> out(n);
    for (std::size_t i = 0; i < n; ++i)
        out[i] = {static_cast<std::int32_t>(all[i]), static_cast<std::int32_t>(all[n + i]),
                  static_cast<std::int32_t>(all[2 * n + i])};
    return out;
}

/// [1, heads, n, head_dim] to [n, heads * stride], `gap` floats of `fill` after each head.
std::vector<float> by_token(const std::vector<float>& x, std::size_t heads, std::size_t n, std::size_t head_dim,
                            std::size_t gap = 0, float fill = 0) {
    std::vector<float> out(n * heads * (head_dim + gap), fill);
    for (std::size_t h = 0; h < heads; ++h)
        for (std::size_t t = 0; t < n; ++t)
            std::memcpy(&out[(t * heads + h) * (head_dim + gap)], &x[(h * n + t) * head_dim], head_dim * sizeof(float));
    return out;
}

}  // namespace

TEST_CASE("inverse frequencies have the reference's bits") {
    for (const std::string name : cases) {
        CAPTURE(name);
        const test::golden file("attention/rope_" + name);
        const auto want = file.f32("inv_freq");
        const auto got = table_of(file).inv_freq;
        REQUIRE(got.size() == want.size());
        for (std::size_t j = 0; j < want.size(); ++j) CHECK_MESSAGE(got[j] == want[j], "frequency ", j);
    }
}

TEST_CASE("rotation equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        fg::workspace scratch;
        for (const std::string name : cases) {
            const test::golden file("attention/rope_" + name);
            ops::rope_table table = table_of(file);
            const auto positions = positions_of(file);
            const std::size_t n = positions.size(), half = table.rotary_dim / 2;
            std::vector<float> angles(n * table.rotary_dim);
            const matrix_view<float> view(angles.data(), n, table.rotary_dim);
            REQUIRE(ops::rope_angles(dev, table, positions, view));
            const auto cosines = file.f32("cos"), sines = file.f32("sin");
            std::vector<float> want(angles.size());
            for (std::size_t t = 0; t < n; ++t)
                for (std::size_t j = 0; j < half; ++j) {
                    want[t * table.rotary_dim + j] = cosines[t * table.rotary_dim + j];
                    want[t * table.rotary_dim + half + j] = sines[t * table.rotary_dim + half + j];
                }
            test::check_close(angles, want, file.tol("cos"), name + " angles");
            for (const auto& [input, output, heads] : {std::tuple("q", "q_rot", 4u), std::tuple("k", "k_rot", 2u)}) {
                const std::size_t head_dim = file.shape(input)[3];
                auto x = by_token(file.f32(input), heads, n, head_dim);
                REQUIRE(ops::apply_rope(dev, scratch, table, std::span<const ops::rope_position>(positions), heads, head_dim,
                                        matrix_view<float>(x.data(), n, heads * head_dim)));
                test::check_close(x, by_token(file.f32(output), heads, n, head_dim), file.tol(output), name + " " + output);
                // Heads with something between them: the same bits, and the gap untouched.
                auto gaps = by_token(file.f32(input), heads, n, head_dim, 5, 1e4f);
                REQUIRE(ops::apply_rope(dev, table, matrix_view<const float>(view), heads, head_dim,
                                        matrix_view<float>(gaps.data(), n, heads * (head_dim + 5))));
                auto rotated = std::vector<float>(n * heads * (head_dim + 5), 1e4f);
                for (std::size_t i = 0; i < n * heads; ++i)
                    std::memcpy(&rotated[i * (head_dim + 5)], &x[i * head_dim], head_dim * sizeof(float));
                CHECK(gaps == rotated);
            }
        }
    });
}

TEST_CASE("every frequency takes the component of its section") {
    const auto interleaved = ops::rope_table::make(1e6, 16, {3, 3, 2});
    const std::vector<std::size_t> want = {0, 1, 2, 0, 1, 2, 0, 1};  // 3 * section[2] = 6: 5 still width; 7 < 9 height
    for (std::size_t j = 0; j < want.size(); ++j) CHECK(interleaved.component(j) == want[j]);
    const auto in_order = ops::rope_table::make(1e6, 16, {3, 3, 2}, false);
    const std::vector<std::size_t> then = {0, 0, 0, 1, 1, 1, 2, 2};
    for (std::size_t j = 0; j < then.size(); ++j) CHECK(in_order.component(j) == then[j]);
    const auto text = ops::rope_table::make(1e6, 16);
    for (std::size_t j = 0; j < 8; ++j) CHECK(text.component(j) == 0);
}

TEST_CASE("N01: linear and yarn give the published frequencies and magnitude") {
    const auto plain = ops::rope_table::make(1e7, 16);
    CHECK(plain.magnitude == 1);
    const auto linear = must(ops::make_rope_scaling({.type = "linear", .factor = 4}));
    const auto stretched = ops::rope_table::make(1e7, 16, {}, true, linear);
    CHECK(stretched.magnitude == 1);
    for (std::size_t j = 0; j < 8; ++j) CHECK(stretched.inv_freq[j] == plain.inv_freq[j] / 4);

    const ops::rope_scaling_settings published{.type = "yarn", .factor = 4, .original_context = 1024};
    const auto yarn = ops::rope_table::make(1e7, 16, {}, true, must(ops::make_rope_scaling(published)));
    // The formula's own numbers, and what the ramp from 0 to 3 leaves as it is: 1, 2/3, 1/3, nothing.
    const double want[] = {1, 0.1000141, 8.891397e-3, 5.928434e-4};
    for (std::size_t j = 0; j < 4; ++j) CHECK(yarn.inv_freq[j] == doctest::Approx(want[j]).epsilon(1e-6));
    for (std::size_t j = 0; j < 8; ++j) {
        const double kept = j < 3 ? 1 - static_cast<double>(j) / 3 : 0, whole = static_cast<double>(plain.inv_freq[j]);
        CHECK(static_cast<double>(yarn.inv_freq[j]) == doctest::Approx(whole * kept + whole / 4 * (1 - kept)).epsilon(1e-6));
    }
    CHECK(static_cast<double>(yarn.magnitude) == doctest::Approx(1.138629).epsilon(1e-6));

    // Ends of the ramp that are no whole indices, 0.807966 and 2.528137, for models that ask for them.
    auto other = published;
    other.truncate = false;
    const auto exact = ops::rope_table::make(1e7, 16, {}, true, must(ops::make_rope_scaling(other)));
    const double kept = 1 - (1 - 0.807966) / (2.528137 - 0.807966);
    CHECK(static_cast<double>(exact.inv_freq[1] / plain.inv_freq[1]) == doctest::Approx(kept + (1 - kept) / 4).epsilon(1e-5));
}

TEST_CASE("N01: the attention factor of yarn, as transformers settles it") {
    const auto magnitude = [](ops::rope_scaling_settings settings) {
        settings.type = "yarn";
        settings.original_context = 1024;
        return must(ops::make_rope_scaling(settings)).magnitude;
    };
    CHECK(magnitude({.factor = 4}) == doctest::Approx(1 + 0.1 * std::log(4.0)));
    CHECK(magnitude({.factor = 1}) == 1);
    CHECK(magnitude({.factor = 4, .attention_factor = 0.5}) == 0.5);
    CHECK(magnitude({.factor = 4, .attention_factor = 0.5, .attention_multiplier = 3}) == 1.5);
    CHECK(magnitude({.factor = 4, .mscale = 2, .mscale_all_dim = 1}) ==
          doctest::Approx((1 + 0.2 * std::log(4.0)) / (1 + 0.1 * std::log(4.0))));
    CHECK(magnitude({.factor = 4, .mscale = 2}) == doctest::Approx(1 + 0.1 * std::log(4.0)));
    // Without a factor the two contexts give it.
    CHECK(magnitude({.context_length = 4096}) == doctest::Approx(1 + 0.1 * std::log(4.0)));
}

TEST_CASE("N01: scaled angles are longer, and every component of a position is scaled") {
    fg::device::cpu<fg::isa::baseline> dev;
    const auto scaling = must(ops::make_rope_scaling({.type = "yarn", .factor = 4, .original_context = 1024}));
    const auto table = ops::rope_table::make(1e7, 16, {3, 3, 2}, true, scaling);
    const std::vector<ops::rope_position> positions = {{700, 31, 5}};
    std::vector<float> angles(16);
    REQUIRE(
        ops::rope_angles(dev, table, std::span<const ops::rope_position>(positions), matrix_view<float>(angles.data(), 1, 16)));
    const double components[] = {700, 31, 5, 700, 31, 5, 700, 31};
    for (std::size_t j = 0; j < 8; ++j) {
        const double angle = components[j] * static_cast<double>(table.inv_freq[j]);
        CHECK(static_cast<double>(angles[j]) == doctest::Approx(1.1386294 * std::cos(angle)).epsilon(2e-5));
        CHECK(static_cast<double>(angles[8 + j]) == doctest::Approx(1.1386294 * std::sin(angle)).epsilon(2e-5));
    }
}

TEST_CASE("N01: a scaling that is not built is refused by its name, and numbers that cannot be") {
    const auto refused = [](const ops::rope_scaling_settings& settings, fg::errc code, std::string_view part) {
        const auto got = ops::make_rope_scaling(settings);
        REQUIRE_FALSE(got.has_value());
        CHECK(got.error().code == code);
        CHECK_MESSAGE(got.error().message.find(part) != std::string::npos, got.error().message);
    };
    for (const char* type : {"dynamic", "longrope", "llama3", "proportional", "su", ""})
        refused({.type = type, .factor = 4}, fg::errc::unsupported, fg::concat("\"", type, "\""));
    CHECK(must(ops::make_rope_scaling({.type = "default", .factor = 4})) == ops::rope_scaling{});
    refused({.type = "linear"}, fg::errc::not_found, "no factor");
    refused({.type = "yarn", .context_length = 4096}, fg::errc::not_found, "no factor");
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
        refused({.type = "linear", .factor = bad}, fg::errc::invalid_argument, "factor");
        refused({.type = "yarn", .factor = 4, .original_context = bad}, fg::errc::invalid_argument, "original context");
        refused({.type = "yarn", .factor = 4, .beta_fast = bad, .context_length = 1}, fg::errc::invalid_argument, "beta_fast");
        refused({.type = "yarn", .factor = 4, .beta_slow = bad, .context_length = 1}, fg::errc::invalid_argument, "beta_slow");
        refused({.type = "yarn", .factor = 4, .attention_factor = bad, .context_length = 1}, fg::errc::invalid_argument,
                "attention factor");
        refused({.type = "none", .attention_multiplier = bad}, fg::errc::invalid_argument, "attention factor");
    }
    refused({.type = "yarn", .factor = 4, .beta_fast = 1, .beta_slow = 2, .context_length = 1}, fg::errc::invalid_argument,
            "below");
}

TEST_CASE("rotation has the same bits for any number of threads and any split") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto table = ops::rope_table::make(1e7, 24, {4, 4, 4});
        const std::size_t rows = 301, heads = 3, head_dim = 40;
        std::vector<float> x(rows * heads * head_dim);
        std::vector<ops::rope_position> positions(rows);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) - 48.0f;
        for (std::size_t r = 0; r < rows; ++r)
            positions[r] = {static_cast<std::int32_t>(r * 31), static_cast<std::int32_t>(r), static_cast<std::int32_t>(r * 7)};
        const std::span<const ops::rope_position> all(positions);
        fg::workspace scratch;
        fg::device::cpu<Isa> serial;
        auto whole = x;
        REQUIRE(ops::apply_rope(serial, scratch, table, all, heads, head_dim,
                                matrix_view<float>(whole.data(), rows, heads * head_dim)));
        test::threads pool(5);
        fg::device::cpu<Isa> many{pool};
        auto threaded = x;
        REQUIRE(ops::apply_rope(many, scratch, table, all, heads, head_dim,
                                matrix_view<float>(threaded.data(), rows, heads * head_dim)));
        CHECK(threaded == whole);
        auto split = x;
        for (std::size_t begin = 0, count = 1; begin < rows; begin += count, count = 2 * count + 1) {
            count = std::min(count, rows - begin);
            REQUIRE(ops::apply_rope(serial, scratch, table, all.subspan(begin, count), heads, head_dim,
                                    matrix_view<float>(split.data() + begin * heads * head_dim, count, heads * head_dim)));
        }
        CHECK(split == whole);
    });
}

TEST_CASE("wrong shapes are errors") {
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    const auto table = ops::rope_table::make(1e4, 8);
    const std::vector<ops::rope_position> positions(2);
    std::vector<float> x(2 * 16);
    const auto code = [&](std::size_t rows, std::size_t heads, std::size_t head_dim) {
        return ops::apply_rope(dev, scratch, table, std::span<const ops::rope_position>(positions), heads, head_dim,
                               matrix_view<float>(x.data(), rows, 16))
            .error()
            .code;
    };
    CHECK(code(1, 2, 8) == fg::errc::shape_mismatch);  // rows and positions differ
    CHECK(code(2, 3, 5) == fg::errc::shape_mismatch);  // heads do not divide the row
    CHECK(code(2, 4, 4) == fg::errc::shape_mismatch);  // head narrower than the rotary part
    CHECK(code(2, 0, 8) == fg::errc::shape_mismatch);
    CHECK(code(2, 2, 9) == fg::errc::shape_mismatch);  // head wider than its stride
}

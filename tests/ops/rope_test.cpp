#include "frugal/ops/rope/rope.hpp"

#include <cstring>
#include <string>
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
                REQUIRE(ops::apply_rope(dev, scratch, table, std::span<const ops::rope_position>(positions),
                                        matrix_view<float>(x.data(), n, heads * head_dim), heads, head_dim));
                test::check_close(x, by_token(file.f32(output), heads, n, head_dim), file.tol(output), name + " " + output);
                // Heads with something between them: the same bits, and the gap untouched.
                auto gaps = by_token(file.f32(input), heads, n, head_dim, 5, 1e4f);
                REQUIRE(ops::apply_rope(dev, table, matrix_view<const float>(view),
                                        matrix_view<float>(gaps.data(), n, heads * (head_dim + 5)), heads, head_dim));
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
        REQUIRE(ops::apply_rope(serial, scratch, table, all, matrix_view<float>(whole.data(), rows, heads * head_dim), heads,
                                head_dim));
        test::threads pool(5);
        fg::device::cpu<Isa> many{pool};
        auto threaded = x;
        REQUIRE(ops::apply_rope(many, scratch, table, all, matrix_view<float>(threaded.data(), rows, heads * head_dim), heads,
                                head_dim));
        CHECK(threaded == whole);
        auto split = x;
        for (std::size_t begin = 0, count = 1; begin < rows; begin += count, count = 2 * count + 1) {
            count = std::min(count, rows - begin);
            REQUIRE(ops::apply_rope(serial, scratch, table, all.subspan(begin, count),
                                    matrix_view<float>(split.data() + begin * heads * head_dim, count, heads * head_dim), heads,
                                    head_dim));
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
        return ops::apply_rope(dev, scratch, table, std::span<const ops::rope_position>(positions),
                               matrix_view<float>(x.data(), rows, 16), heads, head_dim)
            .error()
            .code;
    };
    CHECK(code(1, 2, 8) == fg::errc::shape_mismatch);  // rows and positions differ
    CHECK(code(2, 3, 5) == fg::errc::shape_mismatch);  // heads do not divide the row
    CHECK(code(2, 4, 4) == fg::errc::shape_mismatch);  // head narrower than the rotary part
    CHECK(code(2, 0, 8) == fg::errc::shape_mismatch);
    CHECK(code(2, 2, 9) == fg::errc::shape_mismatch);  // head wider than its stride
}

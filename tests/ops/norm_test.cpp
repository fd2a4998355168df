#include "frugal/ops/norm/norm.hpp"

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "frugal/tensor/scalar.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using fg::matrix_view;
namespace weight = ops::norm_weight;

namespace {

matrix_view<const float> rows_of(const std::vector<float>& data, std::size_t cols) {
    return {data.data(), data.size() / cols, cols};
}
matrix_view<float> rows_of(std::vector<float>& data, std::size_t cols) { return {data.data(), data.size() / cols, cols}; }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> normals(std::size_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (float& value : out) value = normal(generator);
    return out;
}

}  // namespace

TEST_CASE("zero-centred norm equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const char* name : {"attention/rmsnorm_zero_centred_d64", "attention/rmsnorm_zero_centred_d256"}) {
            const test::golden file(name);
            const auto x = file.f32("x"), w = file.f32("w"), want = file.f32("y");
            std::vector<float> y(x.size());
            const float eps = file.params().at("eps").template get<float>();
            REQUIRE(ops::rms_norm<weight::zero_centred>(dev, w, rows_of(x, w.size()), eps, rows_of(y, w.size())));
            test::check_close(y, want, file.tol("y"), name);
        }
    });
}

TEST_CASE("grouped norm equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const test::golden file("attention/rmsnorm_grouped");
        const auto x = file.f32("x"), w = file.f32("w"), want = file.f32("y");
        const std::size_t group = file.params().at("group_size").template get<std::size_t>();
        std::vector<float> y(x.size());
        REQUIRE(ops::grouped_rms_norm<weight::zero_centred>(dev, w, rows_of(x, w.size()), group,
                                                            file.params().at("eps").template get<float>(), rows_of(y, w.size())));
        test::check_close(y, want, file.tol("y"), file.name());
    });
}

TEST_CASE("l2 norm equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        for (const char* name : {"gdn/l2norm_d16", "gdn/l2norm_d128"}) {
            const test::golden file(name);
            const auto x = file.f32("x"), want = file.f32("y");
            const std::size_t d = file.shape("x").back();
            std::vector<float> y(x.size());
            REQUIRE(ops::l2_norm(dev, rows_of(x, d), 1e-6f, rows_of(y, d)));
            test::check_close(y, want, file.tol("y"), name);
            // The same heads side by side in one row.
            std::vector<float> grouped(x.size());
            REQUIRE(ops::grouped_l2_norm(dev, rows_of(x, 5 * d), d, 1e-6f, rows_of(grouped, 5 * d)));
            CHECK(same_bits(grouped, y));
        }
    });
}

TEST_CASE("gated norm equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const auto run = [&]<class Gate>(fg::type_tag<Gate>, const char* name) {
            const test::golden file(name);
            const auto x = file.f32("x"), gate = file.f32("gate"), w = file.f32("w"), want = file.f32("y");
            std::vector<float> y(x.size());
            REQUIRE(
                ops::gated_rms_norm<Gate>(dev, w, rows_of(x, w.size()), rows_of(gate, w.size()), 1e-6f, rows_of(y, w.size())));
            test::check_close(y, want, file.tol("y"), name);
            // In place over x, and over the gate.
            std::vector<float> over_x = x, over_gate = gate;
            REQUIRE(ops::gated_rms_norm<Gate>(dev, w, rows_of(over_x, w.size()), rows_of(gate, w.size()), 1e-6f,
                                              rows_of(over_x, w.size())));
            REQUIRE(ops::gated_rms_norm<Gate>(dev, w, rows_of(x, w.size()), rows_of(over_gate, w.size()), 1e-6f,
                                              rows_of(over_gate, w.size())));
            CHECK(same_bits(over_x, y));
            CHECK(same_bits(over_gate, y));
        };
        for (const char* name : {"gdn/rmsnorm_gated_silu_d16", "gdn/rmsnorm_gated_silu_d128"})
            run(fg::type_tag<ops::activation::silu>{}, name);
        for (const char* name : {"gdn/rmsnorm_gated_sigmoid_d16", "gdn/rmsnorm_gated_sigmoid_d128"})
            run(fg::type_tag<ops::activation::sigmoid>{}, name);
    });
}

TEST_CASE("C04 l2 norm: eps is added to the sum, inside the root") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::size_t d = 128;
        for (const float level : {0.0f, 1e-4f, 1e-3f, 1e-2f, 1.0f, 1e4f}) {
            const std::vector<float> x(d, level);
            std::vector<float> y(d, -1.0f);
            REQUIRE(ops::l2_norm(dev, rows_of(x, d), 1e-6f, rows_of(y, d)));
            const double want = double(level) / std::sqrt(double(d) * double(level) * double(level) + double(1e-6f));
            for (const float value : y) CHECK(std::abs(value - want) <= 3e-7 * want);
        }
        std::vector<float> y(d);
        REQUIRE(ops::l2_norm(dev, rows_of(std::vector<float>(d, 1e-4f), d), 1e-6f, rows_of(y, d)));
        CHECK(y[0] == doctest::Approx(0.066227).epsilon(1e-5));
        // Every head width, also those that are not a multiple of a register.
        for (std::size_t n = 1; n <= 70; ++n) {
            const auto x = normals(n, static_cast<unsigned>(n));
            std::vector<float> out(n);
            REQUIRE(ops::l2_norm(dev, rows_of(x, n), 1e-6f, rows_of(out, n)));
            double sum = 0;
            for (const float value : x) sum += double(value) * value;
            std::vector<float> want(n);
            for (std::size_t i = 0; i < n; ++i) want[i] = static_cast<float>(x[i] / std::sqrt(sum + double(1e-6f)));
            test::check_close(out, want, {1e-7, 1e-6}, "l2 norm of " + std::to_string(n));
        }
    });
}

TEST_CASE("C11 norm weights: 1+w and w are two types, 1+w is formed in f32, the gated norm takes w") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        const std::size_t d = 64;
        const auto x = normals(d, 7);
        double square = 0;
        for (const float value : x) square += double(value) * value;
        const double scale = 1.0 / std::sqrt(square / double(d) + double(1e-6f));
        std::vector<float> y(d);
        const auto check = [&](double factor, const char* what) {
            std::vector<float> want(d);
            for (std::size_t i = 0; i < d; ++i) want[i] = static_cast<float>(x[i] * scale * factor);
            test::check_close(y, want, {0, 5e-7}, what);
        };
        const std::vector<float> zero(d, 0.0f);
        REQUIRE(ops::rms_norm<weight::zero_centred>(dev, zero, rows_of(x, d), 1e-6f, rows_of(y, d)));
        check(1.0, "zero weights, zero-centred: identity");
        REQUIRE(ops::rms_norm<weight::plain>(dev, zero, rows_of(x, d), 1e-6f, rows_of(y, d)));
        check(0.0, "zero weights, plain: zero");
        // 0.001 in bfloat16; 1 + it would be 1 in bfloat16.
        const float small = fg::to_float(fg::to_bfloat16(0.001f));
        const std::vector<float> smalls(d, small);
        REQUIRE(ops::rms_norm<weight::zero_centred>(dev, smalls, rows_of(x, d), 1e-6f, rows_of(y, d)));
        check(1.0 + double(small), "small weights, zero-centred");
        REQUIRE(ops::rms_norm<weight::plain>(dev, smalls, rows_of(x, d), 1e-6f, rows_of(y, d)));
        check(double(small), "small weights, plain");
        // A zero-centred weight in a Hugging Face file and the 1 + w of a GGUF file are one norm.
        std::vector<float> w = normals(d, 8), one_plus_w(d), other(d);
        for (std::size_t i = 0; i < d; ++i) one_plus_w[i] = 1.0f + w[i];
        REQUIRE(ops::rms_norm<weight::zero_centred>(dev, w, rows_of(x, d), 1e-6f, rows_of(y, d)));
        REQUIRE(ops::rms_norm<weight::plain>(dev, one_plus_w, rows_of(x, d), 1e-6f, rows_of(other, d)));
        CHECK(same_bits(y, other));
        // The gated norm: zero weights close it, whatever the gate.
        const std::vector<float> open(d, 100.0f);
        REQUIRE(ops::gated_rms_norm<ops::activation::silu>(dev, zero, rows_of(x, d), rows_of(open, d), 1e-6f, rows_of(y, d)));
        check(0.0, "gated norm with zero weights");
    });
}

TEST_CASE("norms: rows do not see one another, strides are kept, in place works, threads do not matter") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        test::threads pool(3);
        fg::device::cpu<Isa> threaded(pool);
        const std::size_t rows = 700, d = 33, stride = 40;
        const auto padded = normals(rows * stride, 3);
        const auto w = normals(d, 4);
        const matrix_view<const float> x(padded.data(), rows, d, stride);
        std::vector<float> y(rows * d), again(rows * d);
        REQUIRE(ops::rms_norm<weight::plain>(dev, w, x, 1e-6f, rows_of(y, d)));
        REQUIRE(ops::rms_norm<weight::plain>(threaded, w, x, 1e-6f, rows_of(again, d)));
        CHECK(same_bits(y, again));
        for (const std::size_t r : std::initializer_list<std::size_t>{std::size_t{0}, std::size_t{357}, rows - 1}) {
            std::vector<float> alone(d);
            REQUIRE(ops::rms_norm<weight::plain>(dev, w, x.rows_range(r, 1), 1e-6f, rows_of(alone, d)));
            CHECK(std::memcmp(alone.data(), y.data() + r * d, d * sizeof(float)) == 0);
        }
        auto in_place = padded;
        const matrix_view<float> both(in_place.data(), rows, d, stride);
        REQUIRE(ops::rms_norm<weight::plain>(dev, w, both, 1e-6f, both));
        bool equal = true;
        for (std::size_t r = 0; r < rows; ++r) {
            equal = equal && std::memcmp(both.row(r), y.data() + r * d, d * sizeof(float)) == 0;
            for (std::size_t c = d; c < stride; ++c) equal = equal && in_place[r * stride + c] == padded[r * stride + c];
        }
        CHECK(equal);
    });
}

TEST_CASE("norms: wrong shapes are returned errors, no rows are no work") {
    fg::device::cpu<fg::isa::baseline> dev;
    std::vector<float> x(24), y(24), w(8);
    const auto code = [](const fg::status& s) { return s ? fg::errc::io : s.error().code; };
    const std::span<const float> short_w(w.data(), 7);
    CHECK(code(ops::rms_norm<weight::plain>(dev, short_w, rows_of(x, 8), 1e-6f, rows_of(y, 8))) == fg::errc::shape_mismatch);
    CHECK(code(ops::rms_norm<weight::plain>(dev, w, rows_of(x, 8), 1e-6f, rows_of(y, 12))) == fg::errc::shape_mismatch);
    CHECK(code(ops::grouped_rms_norm<weight::plain>(dev, w, rows_of(x, 8), 3, 1e-6f, rows_of(y, 8))) == fg::errc::shape_mismatch);
    CHECK(code(ops::grouped_rms_norm<weight::plain>(dev, w, rows_of(x, 8), 0, 1e-6f, rows_of(y, 8))) == fg::errc::shape_mismatch);
    CHECK(code(ops::l2_norm(dev, rows_of(x, 8), 1e-6f, rows_of(y, 6))) == fg::errc::shape_mismatch);
    CHECK(code(ops::gated_rms_norm<ops::activation::silu>(dev, w, rows_of(x, 8), rows_of(x, 6), 1e-6f, rows_of(y, 8))) ==
          fg::errc::shape_mismatch);
    CHECK(
        ops::rms_norm<weight::plain>(dev, w, matrix_view<const float>(nullptr, 0, 8), 1e-6f, matrix_view<float>(nullptr, 0, 8)));
}

#include "frugal/layer/hyper_connection.hpp"

#include <string>

#include "golden.hpp"
#include "isa.hpp"
#include "layer_data.hpp"
#include "threads.hpp"

namespace fg = frugal;
namespace layer = frugal::layer;
namespace quant = frugal::quant;
using formats = quant::list<quant::f32>;
using connection = layer::hyper_connection<frugal::ops::norm_weight::zero_centred>;
using test::as_rows;

namespace {

/// A reference case with its weights.
struct reference {
    test::golden file;
    std::vector<float> norm, down, up, inject, x;
    layer::hyper_connection_dims dims;

    explicit reference(const std::string& name)
        : file(name),
          norm(file.f32("w.hc_norm.weight")),
          down(file.f32("w.input_mix_weight_down.weight")),
          up(file.f32("w.input_mix_weight_up.weight")),
          x(file.f32("x")) {
        if (file.has("w.block_inject_weight.weight")) inject = file.f32("w.block_inject_weight.weight");
        dims = {file.params().at("hidden_size"), file.params().at("hc_count"), file.params().at("hc_lowrank"),
                file.params().at("rms_eps").get<float>()};
    }
    [[nodiscard]] std::size_t all() const { return dims.hidden * dims.streams; }
    [[nodiscard]] std::size_t rows() const { return x.size() / all(); }
    [[nodiscard]] layer::hyper_connection_weights weights() const {
        layer::hyper_connection_weights out{norm, test::f32_weights(down, all()), test::f32_weights(up, dims.rank), {}};
        if (!inject.empty()) out.inject = test::f32_weights(inject, all());
        return out;
    }
};

}  // namespace

TEST_CASE("a hyper-connection around a block equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : {"parts/hyper_combine_hc2", "parts/hyper_combine_hc4"}) {
            const reference r(name);
            const std::size_t rows = r.rows(), hidden = r.dims.hidden, streams = r.dims.streams;
            std::vector<float> first;
            for (const std::size_t count : {1u, 4u}) {
                test::threads threads(count);
                fg::device::cpu<Isa> dev(threads);
                fg::workspace scratch;
                std::vector<float> mixed(rows * hidden), injection(rows * streams), fed = r.x;
                REQUIRE(connection::mix<formats>(dev, scratch, r.dims, r.weights(), as_rows(r.x, r.all()), as_rows(mixed, hidden),
                                                 as_rows(injection, streams)));
                test::check_close(mixed, r.file.f32("mixed"), r.file.tol("mixed"), name);
                test::check_close(injection, r.file.f32("injection"), r.file.tol("injection"), name);
                const auto block = r.file.f32("block_out");
                REQUIRE(connection::inject(dev, as_rows(injection, streams), as_rows(block, hidden), as_rows(fed, r.all())));
                test::check_close(fed, r.file.f32("streams_out"), r.file.tol("streams_out"), name);
                if (first.empty()) first = mixed;
                CHECK(test::equal_bits(mixed, first));

                // Each row by itself has the same bits.
                for (std::size_t row = 0; row < rows; ++row) {
                    std::vector<float> one(hidden), one_injection(streams);
                    REQUIRE(connection::mix<formats>(dev, scratch, r.dims, r.weights(), as_rows(r.x, r.all()).rows_range(row, 1),
                                                     as_rows(one, hidden), as_rows(one_injection, streams)));
                    CHECK(std::equal(one.begin(), one.end(), mixed.begin() + static_cast<std::ptrdiff_t>(row * hidden)));
                    CHECK(std::equal(one_injection.begin(), one_injection.end(),
                                     injection.begin() + static_cast<std::ptrdiff_t>(row * streams)));
                }
            }
        }
    });
}

TEST_CASE("the mixer at the end of the model equals the reference") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const char* name : {"parts/hyper_mixer_hc2", "parts/hyper_mixer_hc4"}) {
            const reference r(name);
            fg::device::cpu<Isa> dev;
            fg::workspace scratch;
            std::vector<float> mixed(r.rows() * r.dims.hidden);
            REQUIRE(connection::final_mix<formats>(dev, scratch, r.dims, r.weights(), as_rows(r.x, r.all()),
                                                   as_rows(mixed, r.dims.hidden)));
            test::check_close(mixed, r.file.f32("mixed"), r.file.tol("mixed"), name);
        }
    });
}

TEST_CASE("the embedding enters as identical copies") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        test::threads threads(3);
        fg::device::cpu<Isa> dev(threads);
        const auto x = test::normal_numbers(20 * 5, 1);
        std::vector<float> streams(20 * 15, -1);
        REQUIRE(connection::expand(dev, as_rows(x, 5), as_rows(streams, 15)));
        for (std::size_t r = 0; r < 20; ++r)
            for (std::size_t c = 0; c < 15; ++c) CHECK(streams[r * 15 + c] == x[r * 5 + c % 5]);
        CHECK(connection::expand(dev, as_rows(x, 5), fg::matrix_view<float>(streams.data(), 20, 14)).error().code ==
              fg::errc::shape_mismatch);
    });
}

TEST_CASE("C15 no rows at all are no work") {
    const reference r("parts/hyper_combine_hc2");
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    std::vector<float> streams;
    CHECK(connection::mix<formats>(dev, scratch, r.dims, r.weights(), {nullptr, 0, r.all()}, {nullptr, 0, r.dims.hidden},
                                   {nullptr, 0, r.dims.streams}));
    CHECK(connection::inject(dev, {nullptr, 0, r.dims.streams}, {nullptr, 0, r.dims.hidden}, {nullptr, 0, r.all()}));
    CHECK(connection::expand(dev, {nullptr, 0, r.dims.hidden}, {nullptr, 0, r.all()}));
}

TEST_CASE("sizes that do not fit are refused") {
    const reference r("parts/hyper_combine_hc4");
    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    const std::size_t rows = r.rows();
    std::vector<float> mixed(rows * r.dims.hidden), injection(rows * r.dims.streams);
    const auto refused = [&](layer::hyper_connection_dims d, layer::hyper_connection_weights w, std::size_t injections) {
        const auto got = connection::mix<formats>(dev, scratch, d, w, as_rows(r.x, r.all()), as_rows(mixed, r.dims.hidden),
                                                  {injection.data(), rows, injections});
        REQUIRE(!got);
        CHECK(got.error().code == fg::errc::shape_mismatch);
    };
    auto d = r.dims;
    d.streams = 3;
    refused(d, r.weights(), 4);
    d = r.dims;
    d.rank = 15;
    refused(d, r.weights(), 4);
    refused(r.dims, r.weights(), 3);
    auto w = r.weights();
    w.inject = {};
    refused(r.dims, w, 4);
    w = r.weights();
    w.norm = w.norm.first(5);
    refused(r.dims, w, 4);
    w = r.weights();
    w.up = w.up.rows_range(0, 7);
    refused(r.dims, w, 4);
}

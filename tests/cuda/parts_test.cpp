// The small operators of the GPU on the emulator, against the golden vectors and the formulas of their CPU tests.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/ops/conv1d/conv1d_cuda.cuh"
#include "frugal/ops/elementwise/elementwise_cuda.cuh"
#include "frugal/ops/moe/router_cuda.cuh"
#include "frugal/ops/ngram/hash.hpp"
#include "frugal/ops/ngram/ngram_cuda.cuh"
#include "frugal/ops/norm/norm_cuda.cuh"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/ops/rope/rope_cuda.cuh"
#include "golden.hpp"
#include "layer_data.hpp"
#include "mutation.hpp"
#include "simt_data.hpp"

namespace fg = frugal;
namespace gpu = frugal::ops::cuda;
namespace ops = frugal::ops;
namespace weight = frugal::ops::norm_weight;
using fg::matrix_view;
using test::device_matrix;
using test::equal_bits;
using test::normal_numbers;
using test::started;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("norms equal the reference") {
    simt::for_each_schedule([] {
        for (const char* name :
             {"attention/rmsnorm_zero_centred_d64", "attention/rmsnorm_zero_centred_d256", "attention/rmsnorm_grouped"}) {
            const test::golden file(name);
            const auto w = file.f32("w");
            const std::size_t cols = w.size();
            const std::size_t group =
                file.params().contains("group_size") ? file.params().at("group_size").get<std::size_t>() : cols;
            device_matrix x(file.f32("x"), cols), y(file.f32("x").size() / cols, cols);
            simt::device_array<float> weights(w);
            started(gpu::grouped_rms_norm<weight::zero_centred>(x, weights.data(), group, file.params().at("eps").get<float>(), y,
                                                                nullptr));
            test::check_close(y.to_host(), file.f32("y"), file.tol("y"), name);
        }
        for (const char* name : {"gdn/l2norm_d16", "gdn/l2norm_d128"}) {
            const test::golden file(name);
            const std::size_t d = file.shape("x").back();
            device_matrix x(file.f32("x"), d), y(file.f32("x").size() / d, d);
            started(gpu::grouped_l2_norm(x, d, 1e-6f, y, nullptr));
            test::check_close(y.to_host(), file.f32("y"), file.tol("y"), name);
            // The same heads side by side in one row, in place.
            device_matrix both(file.f32("x"), 5 * d);
            started(gpu::grouped_l2_norm(both, d, 1e-6f, both, nullptr));
            CHECK(equal_bits(both.to_host(), y.to_host()));
        }
        const auto gated = [&]<class Gate>(fg::type_tag<Gate>, const char* name) {
            const test::golden file(name);
            const auto w = file.f32("w");
            device_matrix x(file.f32("x"), w.size()), gate(file.f32("gate"), w.size()),
                y(file.f32("x").size() / w.size(), w.size());
            simt::device_array<float> weights(w);
            started(gpu::gated_rms_norm<Gate>(x, gate, weights.data(), 1e-6f, y, nullptr));
            test::check_close(y.to_host(), file.f32("y"), file.tol("y"), name);
            started(gpu::gated_rms_norm<Gate>(x, gate, weights.data(), 1e-6f, gate, nullptr));
            CHECK(equal_bits(gate.to_host(), y.to_host()));
        };
        gated(fg::type_tag<ops::activation::silu>{}, "gdn/rmsnorm_gated_silu_d16");
        gated(fg::type_tag<ops::activation::silu>{}, "gdn/rmsnorm_gated_silu_d128");
        gated(fg::type_tag<ops::activation::sigmoid>{}, "gdn/rmsnorm_gated_sigmoid_d128");
    });
}

TEST_CASE("C04 C11 norms of every width: eps inside the root, both weight conventions, the same bits under every order") {
    for (const std::size_t n : {1u, 31u, 33u, 128u, 129u, 1000u, 1025u, 2560u}) {
        CAPTURE(n);
        const auto x = normal_numbers(2 * n, static_cast<unsigned>(n), 1e-3f), w = normal_numbers(n, 5);
        std::vector<float> l2(2 * n), plain(2 * n), centred(2 * n);
        for (std::size_t r = 0; r < 2; ++r) {
            double sum = 0;
            for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[r * n + i]) * static_cast<double>(x[r * n + i]);
            for (std::size_t i = 0; i < n; ++i) {
                const double value = x[r * n + i], factor = w[i];
                const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + double(1e-6f));
                l2[r * n + i] = static_cast<float>(value / std::sqrt(sum + double(1e-6f)));
                plain[r * n + i] = static_cast<float>(value * scale * factor);
                centred[r * n + i] = static_cast<float>(value * scale * (1 + factor));
            }
        }
        const auto run = [&](int which) {
            device_matrix in(x, n), out(2, n);
            simt::device_array<float> weights(w);
            if (which == 0) started(gpu::grouped_l2_norm(in, n, 1e-6f, out, nullptr));
            if (which == 1) started(gpu::grouped_rms_norm<weight::plain>(in, weights.data(), n, 1e-6f, out, nullptr));
            if (which == 2) started(gpu::grouped_rms_norm<weight::zero_centred>(in, weights.data(), n, 1e-6f, out, nullptr));
            return out.to_host();
        };
        test::check_close(run(0), l2, {1e-9, 1e-6}, "l2");
        test::check_close(run(1), plain, {1e-9, 1e-6}, "plain");
        test::check_close(run(2), centred, {1e-9, 1e-6}, "zero-centred");
        CHECK(simt::same_under_all_schedules([&] { return run(1); }));
    }
    const auto x = normal_numbers(2 * 500, 1);
    CHECK(test::unnoticed_barriers([&] {
              device_matrix in(x, 500), out(2, 500);
              started(gpu::grouped_l2_norm(in, 500, 1e-6f, out, nullptr));
              return out.to_host();
          }).size() <= 1);  // the room is used once here: the barrier behind the sum is for those that use it again
}

TEST_CASE("rotation equals the reference") {
    for (const std::string name :
         {"hd256_rot64_text", "hd256_rot64_mrope", "hd64_rot16_mrope", "hd32_full_text", "hd32_full_mrope"}) {
        const test::golden file("attention/rope_" + name);
        const auto params = file.params();
        const auto table =
            ops::rope_table::make(params.at("theta").get<double>(), params.at("rotary_dim").get<std::size_t>(),
                                  params.at("mrope_section").get<std::array<int, 3>>(), params.at("interleaved").get<bool>());
        const auto all = file.i64("positions");  // [3, 1, n]
        const std::size_t n = all.size() / 3, pairs = table.rotary_dim / 2;
        std::vector<ops::rope_position> positions(n);
        for (std::size_t i = 0; i < n; ++i)
            positions[i] = {static_cast<std::int32_t>(all[i]), static_cast<std::int32_t>(all[n + i]),
                            static_cast<std::int32_t>(all[2 * n + i])};
        std::vector<std::uint8_t> components(pairs);
        for (std::size_t j = 0; j < pairs; ++j) components[j] = static_cast<std::uint8_t>(table.component(j));
        const auto cosines = file.f32("cos"), sines = file.f32("sin");
        std::vector<float> want(n * table.rotary_dim);
        for (std::size_t t = 0; t < n; ++t)
            for (std::size_t j = 0; j < pairs; ++j) {
                want[t * table.rotary_dim + j] = cosines[t * table.rotary_dim + j];
                want[t * table.rotary_dim + pairs + j] = sines[t * table.rotary_dim + pairs + j];
            }
        simt::for_each_schedule([&] {
            simt::device_array<float> frequencies(table.inv_freq);
            simt::device_array<std::uint8_t> which(components);
            simt::device_array<ops::rope_position> at(positions);
            device_matrix angles(n, table.rotary_dim);
            const gpu::rope_frequencies on_device{frequencies.data(), which.data(), static_cast<int>(pairs)};
            started(gpu::rope_angles(on_device, at.data(), n, angles.data(), nullptr));
            test::check_close(angles.to_host(), want, file.tol("cos"), name + " angles");
            const auto plain = angles.to_host();  // N01: a scaled embedding's cosines and sines are longer
            device_matrix longer(n, table.rotary_dim);
            started(gpu::rope_angles({frequencies.data(), which.data(), static_cast<int>(pairs), 1.5f}, at.data(), n,
                                     longer.data(), nullptr));
            const auto scaled = longer.to_host();
            for (std::size_t i = 0; i < plain.size(); ++i) REQUIRE(scaled[i] == 1.5f * plain[i]);
            for (const auto& [input, output, count] :
                 {std::tuple("q", "q_rot", std::size_t{4}), std::tuple("k", "k_rot", std::size_t{2})}) {
                const std::size_t heads = count;
                const std::size_t head_dim = file.shape(input)[3], gap = 5;
                const auto by_token = [&](const std::vector<float>& x) {  // [1, heads, n, head_dim], a gap after each head
                    std::vector<float> out(n * heads * (head_dim + gap), 1e4f);
                    for (std::size_t h = 0; h < heads; ++h)
                        for (std::size_t t = 0; t < n; ++t)
                            std::memcpy(&out[(t * heads + h) * (head_dim + gap)], &x[(h * n + t) * head_dim],
                                        head_dim * sizeof(float));
                    return out;
                };
                device_matrix x(by_token(file.f32(input)), heads * (head_dim + gap));
                started(gpu::apply_rope(angles.data(), static_cast<int>(pairs), x, heads, nullptr));
                test::check_close(x.to_host(), by_token(file.f32(output)), file.tol(output), name + " " + output);
            }
        });
    }
}

TEST_CASE("elementwise operators and streams equal their formulas for any width") {
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    for (const std::size_t cols : {1u, 31u, 256u, 300u, 520u}) {
        CAPTURE(cols);
        constexpr std::size_t rows = 3, streams = 4;
        const auto a = normal_numbers(rows * cols, 1, 4.0f), b = normal_numbers(rows * cols, 2);
        const auto wide = normal_numbers(rows * streams * cols, 3, 3.0f), gates = normal_numbers(rows * streams * cols, 4, 3.0f);
        const auto scale = normal_numbers(rows, 5), scales = normal_numbers(rows * streams, 6);
        std::vector<float> want_swiglu(a.size()), want_add(a.size()), want_scaled(a.size()), want_gate(a.size()),
            want_silu(a.size()), want_double(a.size()), want_mean(a.size()), want_streams(wide.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            const double x = a[i], y = b[i];
            const std::size_t r = i / cols, c = i % cols;
            want_swiglu[i] = static_cast<float>(x * sigmoid(x) * y);
            want_add[i] = b[i] + a[i];
            want_scaled[i] = static_cast<float>(y + static_cast<double>(scale[r]) * x);
            want_gate[i] = static_cast<float>(y * sigmoid(x));
            want_silu[i] = static_cast<float>(x / 4 * sigmoid(x / 4));
            want_double[i] = static_cast<float>(2 * sigmoid(x / 4));
            double mean = 0;
            for (std::size_t s = 0; s < streams; ++s) {
                const std::size_t at = (r * streams + s) * cols + c;
                mean += sigmoid(gates[at]) * static_cast<double>(wide[at]) / streams;
                want_streams[at] =
                    static_cast<float>(static_cast<double>(wide[at]) + static_cast<double>(scales[r * streams + s]) * x);
            }
            want_mean[i] = static_cast<float>(mean);
        }
        simt::for_each_schedule([&] {
            device_matrix x(a, cols), y(b, cols), out(rows, cols), gate(gates, streams * cols), all(wide, streams * cols),
                by(scales, streams);
            simt::device_array<float> row_scale(scale);
            started(gpu::swiglu(x, y, out, nullptr));
            test::check_close(out.to_host(), want_swiglu, {1e-7, 5e-7}, "swiglu");
            started(gpu::gated_stream_mean(gate, all, streams, out, nullptr));
            test::check_close(out.to_host(), want_mean, {5e-7, 1e-6}, "mean");
            started(gpu::add_to_streams(by, x, all, nullptr));
            test::check_close(all.to_host(), want_streams, {1e-6, 3e-7}, "streams");
            device_matrix sum(b, cols), scaled(b, cols), gated(b, cols), silu(a, cols), doubled(a, cols);
            started(gpu::add(x, sum, nullptr));
            CHECK(equal_bits(sum.to_host(), want_add));
            started(gpu::add_scaled(row_scale.data(), x, scaled, nullptr));
            test::check_close(scaled.to_host(), want_scaled, {1e-6, 2e-7}, "add_scaled");
            started(gpu::gate_heads(x, 1, gated, nullptr));
            test::check_close(gated.to_host(), want_gate, {1e-7, 5e-7}, "gate");
            started(gpu::divided_silu(4.0f, silu, nullptr));
            test::check_close(silu.to_host(), want_silu, {1e-7, 1e-6}, "silu");
            started(gpu::divided_double_sigmoid(4.0f, doubled, nullptr));
            test::check_close(doubled.to_host(), want_double, {1e-7, 1e-6}, "double sigmoid");
            device_matrix in_place(a, cols);
            started(gpu::swiglu(in_place, y, in_place, nullptr));
            test::check_close(in_place.to_host(), want_swiglu, {1e-7, 5e-7}, "in place");
        });
    }
    // Heads with something between their gates; tails without overflow.
    const std::vector<float> gate = {0, 9, 200, 9, -200, 9, 1e4f, 9}, y = {2, 2, 2, 2};
    device_matrix gates(gate, 8), out(y, 4);
    started(gpu::gate_heads(gates, 4, out, nullptr));
    CHECK(out.to_host() == std::vector<float>{1, 2, 2 / (1 + std::exp(200.0f)), 2});
}

TEST_CASE("a state goes to the row of the token that it is kept before; a number is stored") {
    constexpr std::size_t size = 300, rows = 5;
    const auto check = [&]<class T>(const std::vector<T>& state) {
        simt::for_each_schedule([&] {
            std::vector<T> want(rows * size, T(-7));
            simt::device_array<T> from(state), kept(want);
            simt::device_array<std::uint32_t> visible(std::vector<std::uint32_t>{1, 5, 8});
            for (const std::size_t i : {0u, 1u, 2u}) {
                started(gpu::keep_before_token(from.data(), size, visible.data() + i, kept.data(), rows, nullptr));
                const std::size_t row = i == 0 ? 0 : i == 1 ? 4 : 2;
                std::copy(state.begin(), state.end(), want.begin() + static_cast<std::ptrdiff_t>(row * size));
                CHECK(kept.to_host() == want);
            }
        });
    };
    check(normal_numbers(size, 1));
    std::vector<std::int64_t> tokens(size);
    for (std::size_t i = 0; i < size; ++i) tokens[i] = (std::int64_t{1} << 40) + static_cast<std::int64_t>(i);
    check(tokens);
    simt::device_array<std::uint32_t> number(1);
    started(gpu::store_number(number.data(), 4000000000u, nullptr));
    CHECK(number.to_host() == std::vector<std::uint32_t>{4000000000u});
}

TEST_CASE("the convolution equals the reference's sum, in any split of the tokens, and keeps its history") {
    for (const auto& shape : {std::pair<std::size_t, std::size_t>{4, 1}, {1, 1}, {3, 3}, {6, 2}}) {
        const std::size_t kernel = shape.first, dilation = shape.second;
        constexpr std::size_t tokens = 23, channels = 150;
        const std::size_t history = (kernel - 1) * dilation;
        CAPTURE(kernel);
        const auto x = normal_numbers(tokens * channels, 1), w = normal_numbers(channels * kernel, 2),
                   past = normal_numbers(history * channels, 3);
        std::vector<float> want(x.size()), last(past.size());
        const auto row = [&](std::size_t at, std::size_t c) {
            return at < history ? past[at * channels + c] : x[(at - history) * channels + c];
        };
        for (std::size_t c = 0; c < channels; ++c) {
            for (std::size_t t = 0; t < tokens; ++t) {
                double sum = 0;
                for (std::size_t k = 0; k < kernel; ++k)
                    sum += static_cast<double>(w[c * kernel + k]) * static_cast<double>(row(t + k * dilation, c));
                want[t * channels + c] = static_cast<float>(sum / (1 + std::exp(-sum)));
            }
            for (std::size_t h = 0; h < history; ++h) last[h * channels + c] = row(h + tokens, c);
        }
        std::vector<float> first;
        simt::for_each_schedule([&] {
            for (const auto& calls : {std::vector<std::size_t>{23}, {1, 1, 9, 8, 4}, std::vector<std::size_t>(23, 1)}) {
                device_matrix in(x, channels), out(tokens, channels), state(past, channels);
                simt::device_array<float> weights(w);
                std::size_t at = 0;
                for (const std::size_t n : calls) {
                    started(gpu::causal_conv1d<ops::activation::silu>(in.rows(at, n), weights.data(), kernel, dilation, state,
                                                                      out.rows(at, n), nullptr));
                    at += n;
                }
                const auto got = out.to_host();
                if (first.empty()) first = got;
                CHECK(equal_bits(got, first));
                CHECK(equal_bits(state.to_host(), last));
            }
        });
        test::check_close(first, want, {1e-6, 2e-6}, "convolution");
    }
}

TEST_CASE("the router equals the reference; equal probabilities go to the lower expert") {
    for (const char* name : {"parts/moe_qwen3_5_moe", "parts/moe_qwen4_exp_norm", "parts/moe_qwen4_exp_nonorm"}) {
        const test::golden file(name);
        const auto logits = file.f32("router_logits"), margin = file.f32("margin");
        const auto index = file.i64("topk_index");
        const std::size_t experts = file.params().at("num_experts"), top_k = file.params().at("top_k");
        const bool renormalise = file.params().at("norm_topk_prob");
        simt::for_each_schedule([&] {
            const std::size_t rows = logits.size() / experts;
            device_matrix in(logits, experts), weights(rows, top_k);
            simt::device_array<std::int32_t> chosen(rows * top_k);
            simt::device_array<int> bad(std::vector<int>{1000});
            started(gpu::route(in, top_k, renormalise, chosen.data(), weights.data(), bad.data(), nullptr));
            test::check_close(weights.to_host(), file.f32("topk_weight"), file.tol("topk_weight"), name);
            const auto got = chosen.to_host();
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t k = 0; k < top_k && margin[r] >= 1e-5f; ++k) CHECK(got[r * top_k + k] == index[r * top_k + k]);
            CHECK(bad.to_host()[0] == 1000);
        });
    }
    const auto chosen = [&](const std::vector<float>& logits, std::size_t top_k) {
        device_matrix in(logits, logits.size()), weights(1, top_k);
        simt::device_array<std::int32_t> out(top_k);
        simt::device_array<int> bad(std::vector<int>{1});
        started(gpu::route(in, top_k, true, out.data(), weights.data(), bad.data(), nullptr));
        return out.to_host();
    };
    CHECK(chosen(std::vector<float>(150, 0.0f), 4) == std::vector<std::int32_t>{0, 1, 2, 3});
    CHECK(chosen({0, 1, 0, 1, 2, 1}, 6) == std::vector<std::int32_t>{4, 1, 3, 5, 0, 2});
    CHECK(chosen({-900, 5, -800, -1000}, 3) == std::vector<std::int32_t>{1, 0, 2});
    std::vector<float> many(300, 0.0f);
    many[257] = many[32] = 1;
    CHECK(chosen(many, 3) == std::vector<std::int32_t>{32, 257, 0});
    // A row that is not finite is named, and only its weights are NaN.
    for (const float value : {nan_value, infinity, -infinity}) {
        std::vector<float> logits(5 * 6, 0.5f);
        logits[2 * 5 + 3] = logits[4 * 5] = value;
        device_matrix in(logits, 5), weights(6, 2);
        simt::device_array<std::int32_t> out(12);
        simt::device_array<int> bad(std::vector<int>{6});
        started(gpu::route(in, 2, true, out.data(), weights.data(), bad.data(), nullptr));
        CHECK(bad.to_host()[0] == 2);
        const auto got = weights.to_host();
        for (std::size_t r = 0; r < 6; ++r) CHECK(std::isnan(got[2 * r]) == (r == 2 || r == 4));
        const auto index = out.to_host();
        CHECK(std::all_of(index.begin(), index.end(), [](std::int32_t e) { return e >= 0 && e < 5; }));
    }
    device_matrix in(many, 300), weights(1, 2);
    CHECK(gpu::route(in, 0, true, nullptr, weights.data(), nullptr, nullptr) == cudaErrorInvalidValue);
    CHECK(gpu::route(in, 301, true, nullptr, weights.data(), nullptr, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("n-gram rows equal the reference, in one call and in any split; so does the gate") {
    for (const char* name : {"tiny", "ngram4"}) {
        const test::golden file(fg::concat("parts/ple_ids_", name, "_p1"));
        const auto p = file.params();
        const auto hash =
            ops::ngram_hash::derive({p.at("ngram_size"), p.at("heads_per_ngram"), p.at("vocab_size"), p.at("eos_token_id"),
                                     p.contains("base") ? p.at("base") : p.at("ngram_vocab_size_base"), p.at("seed"), 1});
        REQUIRE(hash);
        const auto tokens = file.i64("tokens"), want = file.i64("ids");
        const std::size_t total = file.shape("tokens")[1], heads = hash->heads(), context = hash->context();
        simt::for_each_schedule([&] {
            simt::device_array<std::uint64_t> multipliers(hash->multipliers), offsets(hash->head_offsets),
                sizes(hash->head_sizes);
            const gpu::device_ngram_hash on_device{static_cast<int>(hash->ngram_size),
                                                   static_cast<int>(hash->heads_per_ngram),
                                                   hash->eos,
                                                   multipliers.data(),
                                                   offsets.data(),
                                                   sizes.data()};
            for (std::size_t s = 0; s < 3; ++s) {
                std::vector<std::int64_t> padded(context, hash->eos);
                padded.insert(padded.end(), tokens.begin() + static_cast<std::ptrdiff_t>(s * total),
                              tokens.begin() + static_cast<std::ptrdiff_t>((s + 1) * total));
                simt::device_array<std::int64_t> in(padded), rows(total * heads);
                for (std::size_t at = 0, n = 0; at < total; at += n) {
                    n = std::min(total - at, s == 0 ? total : std::size_t{3});
                    started(gpu::ngram_rows(on_device, in.data() + at, in.data() + at + context, n, rows.data() + at * heads,
                                            nullptr));
                }
                const auto got = rows.to_host();
                CHECK(std::equal(got.begin(), got.end(), want.begin() + static_cast<std::ptrdiff_t>(s * total * heads)));
            }
        });
    }
    constexpr std::size_t rows = 2, streams = 3, hidden = 300;
    auto key = normal_numbers(rows * streams * hidden, 1);
    const auto query = normal_numbers(key.size(), 2), value = normal_numbers(rows * hidden, 3);
    std::fill_n(key.begin(), hidden, 0.0f);
    std::vector<float> want(key.size());
    for (std::size_t i = 0; i < rows * streams; ++i) {
        double a = 0;
        for (std::size_t c = 0; c < hidden; ++c)
            a += static_cast<double>(key[i * hidden + c]) * static_cast<double>(query[i * hidden + c]);
        a /= std::sqrt(static_cast<double>(hidden));
        const double root = a == 0 ? 0 : std::copysign(std::sqrt(std::max(std::abs(a), 1e-6)), a);
        for (std::size_t c = 0; c < hidden; ++c)
            want[i * hidden + c] = static_cast<float>(value[i / streams * hidden + c] / (1 + std::exp(-root)));
    }
    simt::for_each_schedule([&] {
        device_matrix k(key, streams * hidden), q(query, streams * hidden), v(value, hidden), y(rows, streams * hidden);
        started(gpu::ngram_gate(k, q, v, y, nullptr));
        test::check_close(y.to_host(), want, {1e-6, 2e-6}, "gate");
        started(gpu::ngram_gate(k, q, v, k, nullptr));
        CHECK(equal_bits(k.to_host(), y.to_host()));
    });
}

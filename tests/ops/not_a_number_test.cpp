// The rule of NaN (ops/README.md): one that an output is computed from shows in that output, and in no other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/embedding/embedding.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"
#include "frugal/ops/hyper_connection/hyper_connection.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/ops/moe/router.hpp"
#include "frugal/ops/ngram/ngram.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "isa.hpp"
#include "sanitizer.hpp"
#include "threads.hpp"
#include "weights.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
namespace quant = frugal::quant;
using fg::matrix_view;
using floats = std::vector<float>;

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

matrix_view<const float> rows_of(const floats& data, std::size_t cols) { return {data.data(), data.size() / cols, cols}; }
matrix_view<float> writable(floats& data, std::size_t cols) { return {data.data(), data.size() / cols, cols}; }

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }
bool same_bits(const floats& a, const floats& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Which output is computed from which input.
using reaches = std::function<bool(std::size_t in, std::size_t out)>;

/// Puts a NaN of either sign into every place of `input` by turns, and looks where it shows in what `run` returns.
void check(const std::string& name, floats& input, const std::function<floats()>& run, const reaches& hit, bool others = true) {
    CAPTURE(name);
    const floats want = run();
    for (const float y : want) REQUIRE(std::isfinite(y));
    std::size_t lost = 0, astray = 0;
    for (std::size_t in = 0; in < input.size(); ++in)
        for (const float spoilt : {quiet_nan, -quiet_nan}) {
            const float before = std::exchange(input[in], spoilt);
            const floats got = run();
            input[in] = before;
            REQUIRE(got.size() == want.size());
            for (std::size_t out = 0; out < got.size(); ++out) {
                if (hit(in, out))
                    lost += std::isnan(got[out]) ? 0 : 1;
                else if (others)
                    astray += same_bits(got[out], want[out]) ? 0 : 1;
            }
        }
    CHECK(lost == 0);
    CHECK(astray == 0);
}

/// Keys and values of a sequence in one chunk.
struct sequence {
    floats keys, values;
    const float* chunks[2];
    ops::key_value_view<float> view;

    sequence(std::size_t tokens, std::size_t width)
        : keys(test::random_floats(tokens * width, 3)), values(test::random_floats(tokens * width, 4)) {
        chunks[0] = keys.data(), chunks[1] = values.data();
        view = {&chunks[0], &chunks[1], 16, width};
    }
};

}  // namespace

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("NaN: elementwise operators and activations keep it in its place") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        constexpr std::size_t cols = 37, rows = 2;
        floats a = test::random_floats(rows * cols, 1), b = test::random_floats(rows * cols, 2), scale = {0.5f, -2.0f};
        const reaches itself = [](std::size_t in, std::size_t out) { return in == out; };
        const reaches row = [](std::size_t in, std::size_t out) { return out / cols == in; };
        const auto swiglu = [&] {
            floats y(a.size());
            REQUIRE(ops::swiglu(dev, rows_of(a, cols), rows_of(b, cols), writable(y, cols)));
            return y;
        };
        check("swiglu, gate", a, swiglu, itself);
        check("swiglu, up", b, swiglu, itself);
        const auto add_scaled = [&] {
            floats y = b;
            REQUIRE(ops::add_scaled(dev, scale, rows_of(a, cols), writable(y, cols)));
            return y;
        };
        check("add_scaled", a, add_scaled, itself);
        check("add_scaled, scale", scale, add_scaled, row);
        check(
            "add", b,
            [&] {
                floats y = b;
                REQUIRE(ops::add(dev, rows_of(a, cols), writable(y, cols)));
                return y;
            },
            itself);
        check(
            "divided_silu", a,
            [&] {
                floats y = a;
                REQUIRE(ops::divided_silu(dev, 2.0f, writable(y, cols)));
                return y;
            },
            itself);
        check(
            "divided_double_sigmoid", a,
            [&] {
                floats y = a;
                REQUIRE(ops::divided_double_sigmoid(dev, 2.0f, writable(y, cols)));
                return y;
            },
            itself);
        const auto gate_heads = [&] {
            floats y = b;
            REQUIRE(ops::gate_heads(dev, rows_of(a, cols), 1, writable(y, cols)));
            return y;
        };
        check("gate_heads, gate", a, gate_heads, itself);
        check("gate_heads", b, gate_heads, itself);
        check(
            "silu, sigmoid, softplus", a,
            [&] {
                floats y;
                for (const float x : a) y.insert(y.end(), {ops::silu(x), ops::sigmoid(x), ops::softplus(x)});
                return y;
            },
            [](std::size_t in, std::size_t out) { return out / 3 == in; });
        // Two streams of 37, one row.
        const auto mean = [&] {
            floats y(cols);
            REQUIRE(ops::gated_stream_mean(dev, rows_of(a, 2 * cols), rows_of(b, 2 * cols), 2, writable(y, cols)));
            return y;
        };
        const reaches folded = [](std::size_t in, std::size_t out) { return in % cols == out; };
        check("gated_stream_mean, gate", a, mean, folded);
        check("gated_stream_mean", b, mean, folded);
        floats one = test::random_floats(cols, 5);
        const auto to_streams = [&] {
            floats y = b;
            REQUIRE(ops::add_to_streams(dev, rows_of(scale, 2), rows_of(one, cols), writable(y, 2 * cols)));
            return y;
        };
        check("add_to_streams, scale", scale, to_streams, row);
        check("add_to_streams", one, to_streams, [](std::size_t in, std::size_t out) { return out % cols == in; });
        const auto ngram_gate = [&] {
            floats y(a.size());
            REQUIRE(ops::ngram_gate(dev, rows_of(a, 2 * cols), rows_of(b, 2 * cols), rows_of(one, cols), writable(y, 2 * cols)));
            return y;
        };
        const reaches stream = [](std::size_t in, std::size_t out) { return in / cols == out / cols; };
        check("ngram_gate, key", a, ngram_gate, stream);
        check("ngram_gate, query", b, ngram_gate, stream);
        check("ngram_gate, value", one, ngram_gate, [](std::size_t in, std::size_t out) { return out % cols == in; });
        // Three of four features rotate: 0 with 2, 1 with 3; the rest stays.
        const auto table = ops::rope_table::make(1e4, 4, {1, 1, 0});
        const std::vector<ops::rope_position> positions = {{5, 5, 5}, {7, 8, 9}};
        check(
            "apply_rope", a,
            [&] {
                floats y = a;
                fg::workspace scratch;
                REQUIRE(ops::apply_rope(dev, scratch, table, positions, 1, cols, writable(y, cols)));
                return y;
            },
            [](std::size_t in, std::size_t out) {
                const std::size_t i = in % cols, o = out % cols;
                return in / cols == out / cols && (i < 4 && o < 4 ? i % 2 == o % 2 : i == o);
            });
    });
}

TEST_CASE("NaN: a norm loses its row, a convolution what its taps reach") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        constexpr std::size_t cols = 38, rows = 3;
        floats x = test::random_floats(rows * cols, 1), gate = test::random_floats(rows * cols, 2),
               w = test::random_floats(cols, 3);
        floats half_w(w.begin(), w.begin() + cols / 2);
        const reaches same_row = [](std::size_t in, std::size_t out) { return in / cols == out / cols; };
        const reaches same_group = [](std::size_t in, std::size_t out) { return in / (cols / 2) == out / (cols / 2); };
        const reaches column = [](std::size_t in, std::size_t out) { return out % cols == in; };
        const reaches itself = [](std::size_t in, std::size_t out) { return in == out; };
        const auto run = [&](auto&& op) {
            return [&, op] {
                floats y(x.size());
                REQUIRE(op(writable(y, cols)));
                return y;
            };
        };
        const auto rms =
            run([&](auto y) { return ops::rms_norm<ops::norm_weight::zero_centred>(dev, w, rows_of(x, cols), 1e-6f, y); });
        check("rms_norm", x, rms, same_row);
        check("rms_norm, weight", w, rms, column);
        check("grouped_l2_norm", x, run([&](auto y) { return ops::grouped_l2_norm(dev, rows_of(x, cols), cols / 2, 1e-6f, y); }),
              same_group);
        const auto gated = run([&](auto y) {
            return ops::gated_rms_norm<ops::activation::silu>(dev, w, rows_of(x, cols), rows_of(gate, cols), 1e-6f, y);
        });
        check("gated_rms_norm", x, gated, same_row);
        check("gated_rms_norm, gate", gate, gated, itself);

        constexpr std::size_t kernel = 3, dilation = 2, history = (kernel - 1) * dilation;
        floats taps = test::random_floats(cols * kernel, 4), before = test::random_floats(history * cols, 5);
        const auto convolve = [&] {
            floats y(x.size()), state = before;
            REQUIRE(ops::causal_conv1d<ops::activation::silu>(dev, taps, rows_of(x, cols), kernel, dilation,
                                                              writable(state, cols), writable(y, cols)));
            y.insert(y.end(), state.begin(), state.end());
            return y;
        };
        // Rows of [history, x]; an output row t reads rows t, t + 2 and t + 4 of them, the state after it rows 3 … 6.
        const auto reach = [](std::size_t from, std::size_t in, std::size_t out) {
            const std::size_t row = from + in / cols, to = out / cols;
            if (in % cols != out % cols) return false;
            return to < rows ? row >= to && row - to <= history && (row - to) % dilation == 0 : row == to - rows + rows;
        };
        check("causal_conv1d", x, convolve, [&](std::size_t in, std::size_t out) { return reach(history, in, out); });
        check("causal_conv1d, history", before, convolve, [&](std::size_t in, std::size_t out) { return reach(0, in, out); });
        check("causal_conv1d, taps", taps, convolve,
              [&](std::size_t in, std::size_t out) { return out < rows * cols && out % cols == in / kernel; });
    });
}

TEST_CASE("NaN: attention, in a query, key or value that is seen, alone or among others, by rows or at once, at any split") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        constexpr std::size_t heads = 4, kv_heads = 2, dim = 5, width = kv_heads * dim, tokens = 34;
        sequence past(tokens, width);
        const std::uint32_t list[] = {2, 3, 17, 33};
        // One key only; several; more than a step; a list.
        const std::vector<ops::attention_row<float>> rows = {
            {&past.view, nullptr, 1}, {&past.view, nullptr, 2}, {&past.view, nullptr, tokens}, {&past.view, list, 4}, {}};
        const auto sees = [&](std::size_t r, std::size_t token) {
            if (rows[r].list != nullptr) return std::find(list, list + 4, token) != list + 4;
            return token < rows[r].visible;
        };
        floats q = test::random_floats(rows.size() * heads * dim, 1);
        const auto attend = [&](std::size_t first, std::size_t count) {
            fg::workspace scratch;
            floats y(count * heads * dim);
            REQUIRE(ops::attention(dev, scratch, rows_of(q, heads * dim).rows_range(first, count),
                                   std::span(rows).subspan(first, count), {heads, kv_heads, dim}, 0.4f,
                                   writable(y, heads * dim)));
            return y;
        };
        const auto at_once = [&] { return attend(0, rows.size()); };
        const auto by_rows = [&] {
            floats y;
            for (std::size_t r = 0; r < rows.size(); ++r) {
                const floats one = attend(r, 1);
                y.insert(y.end(), one.begin(), one.end());
            }
            return y;
        };
        const reaches of_query = [&](std::size_t in, std::size_t out) {
            return in / dim == out / dim && out / (heads * dim) < 4;
        };
        const reaches of_key = [&](std::size_t in, std::size_t out) {
            return sees(out / (heads * dim), in / width) && in % width / dim == out / dim % heads / (heads / kv_heads);
        };
        const reaches of_value = [&](std::size_t in, std::size_t out) { return of_key(in, out) && in % dim == out % dim; };
        for (const auto& run : {std::function<floats()>(at_once), std::function<floats()>(by_rows)}) {
            check("query", q, run, of_query);
            check("key", past.keys, run, of_key);
            check("value", past.values, run, of_value);
        }
        // Every score NaN from the first, and from the last token on: the same bits both ways.
        for (const std::size_t token : {std::size_t{0}, tokens - 1}) {
            std::fill_n(&past.keys[token * width], width, -quiet_nan);
            CHECK(same_bits(at_once(), by_rows()));
        }
    });
}

TEST_SUITE_END();

TEST_CASE("NaN: attention over many keys, whole spans of which are NaN, for any number of threads") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        constexpr std::size_t dim = 8, tokens = 3 * ops::cpu::attention_span + 7;
        fg::device::cpu<Isa> serial;
        test::threads pool(3);
        fg::device::cpu<Isa> many{pool};
        const auto attend = [&](auto& dev, const sequence& past, const floats& q) {
            const ops::attention_row<float> rows[] = {{&past.view, nullptr, tokens}};
            fg::workspace scratch;
            floats y(dim);
            REQUIRE(ops::attention(dev, scratch, rows_of(q, dim), std::span<const ops::attention_row<float>>(rows), {1, 1, dim},
                                   0.4f, writable(y, dim)));
            return y;
        };
        const floats q = test::random_floats(dim, 1);
        struct range {
            std::size_t first, count;
        };
        constexpr std::size_t span = ops::cpu::attention_span;
        for (const range spoilt : {range{0, span}, range{span, span}, range{2 * span, span}, range{3 * span, 7}, range{0, tokens},
                                   range{span + 1, 1}, range{0, 1}, range{tokens - 1, 1}}) {
            CAPTURE(spoilt.first);
            CAPTURE(spoilt.count);
            sequence past(tokens, dim);
            for (std::size_t t = spoilt.first; t < spoilt.first + spoilt.count; ++t) past.keys[t * dim + t % dim] = quiet_nan;
            const floats y = attend(serial, past, q);
            for (const float value : y) CHECK(std::isnan(value));
            CHECK(same_bits(attend(many, past, q), y));
        }
        sequence past(tokens, dim);
        CHECK(std::isfinite(attend(many, past, q)[0]));
        for (const float value : attend(many, past, floats(dim, quiet_nan))) CHECK(std::isnan(value));
    });
}

TEST_SUITE_BEGIN("no threads" * doctest::skip(test::under_thread_sanitizer));

TEST_CASE("NaN: the gated delta rule, in both scans, keeps it in what follows from it") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        constexpr std::size_t tokens = 6, key_dim = 4, value_dim = 5, key_heads = 1, heads = 2;
        floats q = test::random_floats(tokens * key_heads * key_dim, 1, 0.4f), k = test::random_floats(q.size(), 2, 0.4f),
               v = test::random_floats(tokens * heads * value_dim, 3), g(tokens * heads, -0.3f), beta(tokens * heads, 0.6f);
        floats before = test::random_floats(heads * key_dim * value_dim, 4);
        const auto run = [&]<class Scan>(fg::type_tag<Scan>) {
            return [&] {
                fg::workspace scratch;
                floats state = before, y(v.size());
                REQUIRE(ops::gated_delta_rule<ops::head_pairing::grouped, ops::state_layout::key_major, Scan>(
                    dev, scratch, rows_of(q, key_dim), rows_of(k, key_dim), rows_of(v, heads * value_dim), rows_of(g, heads),
                    rows_of(beta, heads), {key_heads, heads, key_dim, value_dim}, state, writable(y, heads * value_dim)));
                y.insert(y.end(), state.begin(), state.end());
                return y;
            };
        };
        constexpr std::size_t outputs = tokens * heads * value_dim;
        // Token, head and feature of an output; the state after all of them counts as one more token.
        const auto token = [](std::size_t out) { return out < outputs ? out / (heads * value_dim) : tokens; };
        const auto head = [](std::size_t out) {
            return out < outputs ? out / value_dim % heads : (out - outputs) / (key_dim * value_dim);
        };
        const auto feature = [](std::size_t out) { return (out < outputs ? out : out - outputs) % value_dim; };
        const auto check_all = [&](const std::string& scan, const std::function<floats()>& f, bool others) {
            check(
                scan + ", q", q, f, [&](std::size_t in, std::size_t out) { return token(out) == in / key_dim; }, others);
            check(
                scan + ", k", k, f, [&](std::size_t in, std::size_t out) { return out < outputs && token(out) >= in / key_dim; },
                false);
            check(
                scan + ", v", v, f,
                [&](std::size_t in, std::size_t out) {
                    return token(out) >= in / (heads * value_dim) && head(out) == in / value_dim % heads &&
                           feature(out) == in % value_dim;
                },
                others);
            for (floats* gate : {&g, &beta})
                check(
                    scan + ", gates", *gate, f,
                    [&](std::size_t in, std::size_t out) { return token(out) >= in / heads && head(out) == in % heads; }, others);
            check(
                scan + ", state", before, f,
                [&](std::size_t in, std::size_t out) {
                    return out < outputs && head(out) == in / (key_dim * value_dim) && feature(out) == in % value_dim;
                },
                false);
        };
        check_all("token by token", run(fg::type_tag<ops::scan::recurrent>{}), true);
        check_all("in chunks", run(fg::type_tag<ops::scan::chunked<64>>{}), false);

        floats a = test::random_floats(tokens * heads, 5), b = test::random_floats(tokens * heads, 6), decay = {-1.0f, -2.0f},
               bias = {0.1f, 0.2f};
        const auto gates = [&] {
            floats y(2 * tokens * heads);
            const matrix_view<float> both(y.data(), 2 * tokens, heads);
            REQUIRE(ops::delta_gates(dev, decay, bias, rows_of(a, heads), rows_of(b, heads), both.rows_range(0, tokens),
                                     both.rows_range(tokens, tokens)));
            return y;
        };
        check("delta_gates, a", a, gates, [](std::size_t in, std::size_t out) { return in == out; });
        check("delta_gates, b", b, gates, [](std::size_t in, std::size_t out) { return in + tokens * heads == out; });
        for (floats* of_head : {&decay, &bias})
            check("delta_gates, heads", *of_head, gates,
                  [](std::size_t in, std::size_t out) { return out < tokens * heads && out % heads == in; });
    });
}

TEST_CASE("NaN: products, in activations of every precision and in the scales of weights") {
    constexpr std::size_t rows = 3, cols = 512, tokens = 2;
    const auto with = [&](auto& dev, const quant::weight_view& w, const floats& x) {
        fg::workspace scratch;
        floats y(tokens * rows);
        REQUIRE(ops::matmul<quant::all>(dev, scratch, w, rows_of(x, cols), writable(y, rows)));
        return y;
    };
    const auto test_format = [&]<class Format>(fg::type_tag<Format>) {
        CAPTURE(std::string(Format::name));
        auto bytes = test::random_weights<Format>(rows, cols, 3);
        const std::size_t row_bytes = bytes.size() / rows;
        const floats x = test::random_floats(tokens * cols, 4);
        test::for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
            fg::device::cpu<Isa, fg::counters_off, fg::device::f32_activations> plain;
            fg::device::cpu<Isa, fg::counters_off, fg::device::q8_activations> coded;
            const auto view = [&] { return quant::make_weight_view<quant::all>(Format::type, bytes, rows, cols).value(); };
            for (const std::size_t at : {std::size_t{0}, std::size_t{300}, cols - 1}) {
                auto spoilt = x;
                spoilt[cols + at] = -quiet_nan;
                for (const floats& y : {with(plain, view(), spoilt), with(coded, view(), spoilt)})
                    for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i >= rows));
            }
            // Wherever in the second row's last block two bytes of ones make a scale (or the weight itself) NaN.
            std::size_t scales = 0;
            for (std::size_t at = 0; at + 2 <= Format::block_bytes; ++at) {
                std::byte* const block = &bytes[2 * row_bytes - Format::block_bytes];
                const std::byte before[] = {block[at], block[at + 1]};
                block[at] = std::byte{0xFF}, block[at + 1] = std::byte{0x7F};
                const auto weights = quant::dequantize<quant::all>(view());
                REQUIRE(weights);
                if (std::any_of(weights->begin(), weights->end(), [](float value) { return std::isnan(value); })) {
                    ++scales;
                    for (const floats& y : {with(plain, view(), x), with(coded, view(), x)})
                        for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i % rows == 1));
                }
                block[at] = before[0], block[at + 1] = before[1];
            }
            CHECK((scales != 0) == (Format::name != "mxfp4"));  // whose scales are powers of two
        });
    };
    test_format(fg::type_tag<quant::f32>{});
    test_format(fg::type_tag<quant::f16>{});
    test_format(fg::type_tag<quant::bf16>{});
    test_format(fg::type_tag<quant::q8_0>{});
    test_format(fg::type_tag<quant::q4_0>{});
    test_format(fg::type_tag<quant::q4_1>{});
    test_format(fg::type_tag<quant::q4_k>{});
    test_format(fg::type_tag<quant::q6_k>{});
    test_format(fg::type_tag<quant::iq4_xs>{});
    test_format(fg::type_tag<quant::mxfp4>{});
}

TEST_CASE("NaN: a block whose score is NaN is chosen last, and the router refuses") {
    test::for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        fg::device::cpu<Isa> dev;
        constexpr std::size_t dim = 11, blocks = 40, top = 3;
        const auto choose = [&]<class Scalar>(fg::type_tag<Scalar>, const floats& keys, const floats& q) {
            std::vector<Scalar> stored(keys.size());
            floats scales(blocks);
            for (std::size_t b = 0; b < blocks; ++b) {
                if constexpr (std::is_same_v<Scalar, std::int8_t>)
                    scales[b] = ops::encode_block_key(&keys[b * dim], dim, &stored[b * dim]);
                else
                    for (std::size_t d = 0; d < dim; ++d) stored[b * dim + d] = keys[b * dim + d];
            }
            const Scalar* chunk[] = {stored.data()};
            const float* of_scales[] = {scales.data()};
            ops::block_key_view<Scalar> view;
            if constexpr (std::is_same_v<Scalar, std::int8_t>)
                view = {chunk, of_scales, 16, dim};
            else
                view = {chunk, 16, dim};
            const ops::block_row<Scalar> row[] = {{&view, blocks}};
            std::vector<std::uint32_t> chosen(top);
            std::vector<std::size_t> counts(1);
            fg::workspace scratch;
            REQUIRE(ops::select_blocks(dev, scratch, rows_of(q, 2 * dim), std::span<const ops::block_row<Scalar>>(row), 2, top,
                                       chosen, counts));
            REQUIRE(counts[0] == top);
            return chosen;
        };
        const auto check = [&](auto scalar) {
            const floats keys = test::random_floats(blocks * dim, 1), q = test::random_floats(2 * dim, 2);
            const auto best = choose(scalar, keys, q);
            for (std::size_t d = 0; d < dim; ++d) {
                floats spoilt = keys;
                for (const std::uint32_t block : best) spoilt[block * dim + d] = d % 2 == 0 ? quiet_nan : -quiet_nan;
                for (const std::uint32_t block : choose(scalar, spoilt, q))
                    CHECK(std::find(best.begin(), best.end(), block) == best.end());
            }
            for (std::size_t i = 0; i < 2 * dim; ++i) {
                floats spoilt = q;
                spoilt[i] = quiet_nan;
                CHECK(choose(scalar, keys, spoilt) == std::vector<std::uint32_t>{0, 1, 2});  // all alike: the lowest
            }
        };
        check(fg::type_tag<float>{});
        check(fg::type_tag<std::int8_t>{});

        for (std::size_t e = 0; e < 6; ++e) {
            floats logits = test::random_floats(12, 3), weight(4);
            std::vector<std::int32_t> index(4);
            logits[6 + e] = quiet_nan;
            CHECK(ops::route(dev, writable(logits, 6), true, matrix_view<std::int32_t>(index.data(), 2, 2), writable(weight, 2))
                      .error()
                      .code == fg::errc::not_finite);
        }
    });
}

TEST_SUITE_END();

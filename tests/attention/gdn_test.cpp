#include "gdn_support.hpp"

using namespace test;
namespace ops = frugal::ops;
namespace layout = frugal::ops::state_layout;

namespace {

using chunked = attention::gdn<pairing::grouped, ops::activation::silu, ops::scan::chunked<64>>;
using value_major = attention::gdn<pairing::grouped, ops::activation::silu, ops::scan::recurrent, layout::value_major>;
using grouped_sigmoid = attention::gdn<pairing::grouped, ops::activation::sigmoid>;
using chunked_sigmoid = attention::gdn<pairing::grouped, ops::activation::sigmoid, ops::scan::chunked<64>>;

std::vector<float> rows_of(const std::vector<float>& all, std::size_t width, std::size_t first, std::size_t count) {
    return {all.begin() + static_cast<std::ptrdiff_t>(first * width),
            all.begin() + static_cast<std::ptrdiff_t>((first + count) * width)};
}

/// The newest 3 of the 4 columns that the reference caches, as [3, channels].
std::vector<float> history_of(const std::vector<float>& columns, std::size_t row, std::size_t channels) {
    std::vector<float> out(3 * channels);
    for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t t = 0; t < 3; ++t) out[t * channels + c] = columns[(row * channels + c) * 4 + t + 1];
    return out;
}

/// Compares tokens with the golden file's at its tolerance. A token whose head outputs nearly cancel (root mean square 5e-5,
/// far below the norm's sqrt(eps)) has its rounding errors multiplied by a thousand: there the golden file, itself f32, is off
/// from the double reference by about its own tolerance, and its two ways to compute the token differ by more. Such a token
/// is compared with the double reference, at four times the file's distance from it. Returns how many there were.
std::size_t check_tokens(const std::vector<float>& got, const std::vector<float>& want, std::span<const double> exact,
                         std::size_t hidden, tolerance tol, const std::string& what) {
    std::size_t delicate = 0;
    for (std::size_t t = 0; t < got.size() / hidden; ++t) {
        double distance = 0;
        std::vector<float> reference(hidden);
        for (std::size_t i = 0; i < hidden; ++i) {
            const double w = exact[t * hidden + i];
            reference[i] = static_cast<float>(w);
            distance = std::max(distance, std::abs(want[t * hidden + i] - w) / (tol.atol + tol.rtol * std::abs(w)));
        }
        if (distance <= 0.5) {
            check_close(rows_of(got, hidden, t, 1), rows_of(want, hidden, t, 1), tol, what);
        } else {
            ++delicate;
            check_close(rows_of(got, hidden, t, 1), reference, {4 * distance * tol.atol, 4 * distance * tol.rtol},
                        what + ", delicate token");
        }
    }
    return delicate;
}

template <class Isa, class Variant>
void check_layer(const std::string& name) {
    const golden file(name);
    const gdn_layer layer = gdn_layer::from(file);
    const std::size_t hidden = layer.dims.hidden, channels = layer.dims.channels(), size = layer.dims.rule().state_size();
    const auto x = file.f32("x"), want = file.f32("y"), one_call = file.f32("y_one_call");
    const auto tol = file.tol("y");
    const bool silu = file.params().at("gate") == "silu";
    const auto gate = [silu](double v) { return (silu ? v : 1.0) / (1 + std::exp(-v)); };
    std::vector<double> exact[2];
    for (std::size_t row = 0; row < 2; ++row) exact[row] = reference64(layer, rows_of(x, hidden, 23 * row, 23), gate);
    gdn_runner<Isa, Variant> run(layer, 4, 0);
    std::size_t at = 0, delicate = 0;
    for (const std::size_t n : std::initializer_list<std::size_t>{13, 1, 1, 1, 1, 6}) {
        // Both rows of the reference's batch as two sequences of one batch.
        auto rows = rows_of(x, hidden, at, n), second = rows_of(x, hidden, 23 + at, n);
        rows.insert(rows.end(), second.begin(), second.end());
        const auto y = run({{sequence_id{0}, 0, n}, {sequence_id{2}, n, n}}, rows);
        for (std::size_t row = 0; row < 2; ++row)
            delicate += check_tokens(rows_of(y, hidden, row * n, n), rows_of(want, hidden, 23 * row + at, n),
                                     std::span(exact[row]).subspan(at * hidden, n * hidden), hidden, tol, name + " y");
        at += n;
        const std::string suffix = (at < 10 ? "0" : "") + std::to_string(at);
        const auto states = file.f32("recurrent_state_" + suffix), columns = file.f32("conv_state_" + suffix);
        for (std::size_t row = 0; row < 2; ++row) {
            const auto content = run.content(static_cast<int>(2 * row));
            check_close(rows_of(content, size, 0, 1), rows_of(states, size, row, 1), tol, name + " state");
            check_close(std::vector<float>(content.begin() + static_cast<std::ptrdiff_t>(size), content.end()),
                        history_of(columns, row, channels), tol, name + " history");
        }
    }
    for (std::size_t row = 0; row < 2; ++row) {
        run.state.clear(sequence_id{1});
        delicate += check_tokens(run(1, rows_of(x, hidden, 23 * row, 23)), rows_of(one_call, hidden, 23 * row, 23), exact[row],
                                 hidden, tol, name + " in one call");
    }
    CHECK(delicate <= 2);  // one token, in each of the two ways
}

}  // namespace

TEST_CASE("Gated DeltaNet layer equals the reference: prefill, steps, more tokens, one call") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        check_layer<Isa, grouped_silu>("gdn/layer_qwen3_5_silu_k2v4");
        check_layer<Isa, grouped_sigmoid>("gdn/layer_qwen4_exp_sigmoid_k2v4");
        check_layer<Isa, chunked>("gdn/layer_qwen3_5_silu_k2v4");
        check_layer<Isa, chunked_sigmoid>("gdn/layer_qwen4_exp_sigmoid_k2v4");
    });
}

TEST_CASE("C14 left padding: only visible tokens are fed, and give what the masked reference gives") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto check = [&]<class Variant>(fg::type_tag<Variant>, const char* name) {
            const golden file(name);
            const gdn_layer layer = gdn_layer::from(file);
            const std::size_t hidden = layer.dims.hidden, size = layer.dims.rule().state_size();
            const auto x = file.f32("x"), want = file.f32("y_leftpad"), states = file.f32("recurrent_state_leftpad");
            const auto mask = file.i64("mask");
            const auto tol = file.tol("y_leftpad");
            const std::size_t padding = static_cast<std::size_t>(std::count(mask.begin() + 13, mask.end(), 0));
            REQUIRE(padding == 5);
            // Row 1 lies in the batch as the reference has it: its padding is a segment of its own, full of NaN.
            std::vector<float> rows = rows_of(x, hidden, 0, 13), second = rows_of(x, hidden, 23, 13);
            std::fill_n(second.begin(), padding * hidden, quiet_nan);
            rows.insert(rows.end(), second.begin(), second.end());
            gdn_runner<Isa, Variant> run(layer, 2, 0);
            const auto y =
                run({{sequence_id{0}, 0, 13}, {sequence_id::padding, 13, padding}, {sequence_id{1}, 13 + padding, 13 - padding}},
                    rows);
            check_close(rows_of(y, hidden, 0, 13), rows_of(want, hidden, 0, 13), tol, "row without padding");
            check_close(rows_of(y, hidden, 13 + padding, 13 - padding), rows_of(want, hidden, 13 + padding, 13 - padding), tol,
                        "row with padding");
            for (int row = 0; row < 2; ++row)
                check_close(rows_of(run.content(row), size, 0, 1), rows_of(states, size, static_cast<std::size_t>(row), 1), tol,
                            "state");
            CHECK(run.state.length(sequence_id{1}) == 8);
            // The same tokens without any padding around: the same bits.
            gdn_runner<Isa, Variant> alone(layer, 1, 0);
            CHECK(same_bits(alone(0, rows_of(x, hidden, 23 + padding, 13 - padding)),
                            rows_of(y, hidden, 13 + padding, 13 - padding)));
            CHECK(same_bits(alone.content(0), run.content(1)));
        };
        check(fg::type_tag<grouped_silu>{}, "gdn/layer_qwen3_5_silu_k2v4");
        check(fg::type_tag<grouped_sigmoid>{}, "gdn/layer_qwen4_exp_sigmoid_k2v4");
    });
}

TEST_CASE("C08 the same layer in Hugging Face order (grouped) and in GGUF order (tiled)") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        using tiled = attention::gdn<pairing::tiled>;
        const golden file("gdn/layer_qwen3_5_silu_k2v4");
        const gdn_layer hf = gdn_layer::from(file);
        const auto& d = hf.dims;
        const std::size_t ratio = d.value_heads / d.key_heads, hidden = d.hidden, keys = 2 * d.key_heads * d.key_dim;
        // GGUF head j is Hugging Face head source(j).
        const auto source = [&](std::size_t j) { return j % d.key_heads * ratio + j / d.key_heads; };
        const auto permuted = [&](const std::vector<float>& data, std::size_t before, std::size_t per_head) {
            std::vector<float> out = data;
            for (std::size_t j = 0; j < d.value_heads; ++j)
                std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(before + source(j) * per_head), per_head,
                            out.begin() + static_cast<std::ptrdiff_t>(before + j * per_head));
            return out;
        };
        gdn_layer gguf = hf;
        gguf.qkv = permuted(hf.qkv, keys * hidden, d.value_dim * hidden);
        gguf.conv = permuted(hf.conv, keys * d.conv_kernel, d.value_dim * d.conv_kernel);
        gguf.z = permuted(hf.z, 0, d.value_dim * hidden);
        gguf.beta = permuted(hf.beta, 0, hidden), gguf.alpha = permuted(hf.alpha, 0, hidden);
        gguf.a_neg_exp = permuted(hf.a_neg_exp, 0, 1), gguf.dt_bias = permuted(hf.dt_bias, 0, 1);
        for (std::size_t row = 0; row < hidden; ++row) {
            const auto line = permuted(rows_of(hf.out, d.values(), row, 1), 0, d.value_dim);
            std::copy(line.begin(), line.end(), gguf.out.begin() + static_cast<std::ptrdiff_t>(row * d.values()));
        }
        const auto x = rows_of(file.f32("x"), hidden, 0, 23);
        gdn_runner<Isa> from_hf(hf, 1, 0);
        gdn_runner<Isa, tiled> from_gguf(gguf, 1, 0);
        const auto y_hf = from_hf(0, x), y_gguf = from_gguf(0, x);
        // Heads are independent: their states are the same bits. Only the output projection adds in another order.
        const std::size_t size = d.rule().state_size();
        CHECK(same_bits(permuted(rows_of(from_hf.content(0), size, 0, 1), 0, d.key_dim * d.value_dim),
                        rows_of(from_gguf.content(0), size, 0, 1)));
        check_close(y_gguf, y_hf, file.tol("y"), "tiled against grouped");
        check_close(y_gguf, rows_of(file.f32("y_one_call"), hidden, 0, 23), file.tol("y"), "tiled against the reference");
        // The wrong pairing is not close.
        gdn_runner<Isa> wrong(gguf, 1, 0);
        const auto y_wrong = wrong(0, x);
        double difference = 0;
        for (std::size_t i = 0; i < y_wrong.size(); ++i)
            difference = std::max(difference, std::abs(double(y_wrong[i]) - y_hf[i]));
        CHECK(difference > 1e-2);
    });
}

TEST_CASE("C03 any split of the tokens gives the bits of one call; chunks agree within tolerance") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random({24, 2, 4, 12, 10, 4}, 1);
        const std::size_t hidden = layer.dims.hidden, tokens = 70;
        const auto x = normals(tokens * hidden, 2);
        gdn_runner<Isa> run(layer, 1, 0);
        gdn_runner<Isa, value_major> turned(layer, 1, 0);
        gdn_runner<Isa, chunked> in_chunks(layer, 1, 0);
        const auto whole = run(0, x);
        const auto content = run.content(0);
        CHECK(same_bits(turned(0, x), whole));
        check_close(in_chunks(0, x), whole, {5e-6, 2e-5}, "chunked");
        for (std::size_t split = 1; split < tokens; ++split) {
            run.state.clear(sequence_id{0});
            auto y = run(0, rows_of(x, hidden, 0, split));
            const auto rest = run(0, rows_of(x, hidden, split, tokens - split));
            y.insert(y.end(), rest.begin(), rest.end());
            CHECK(same_bits(y, whole));
            CHECK(same_bits(run.content(0), content));
        }
        run.state.clear(sequence_id{0});
        std::vector<float> steps;
        for (std::size_t t = 0; t < tokens; ++t) {
            const auto one = run(0, rows_of(x, hidden, t, 1));
            steps.insert(steps.end(), one.begin(), one.end());
        }
        CHECK(same_bits(steps, whole));
        CHECK(run.state.length(sequence_id{0}) == tokens);
    });
}

TEST_CASE("C13 C18 several sequences in one batch, each as alone, bit for bit; in turn as together; threads do not matter") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random({24, 2, 4, 16, 70, 4}, 3);
        const std::size_t hidden = layer.dims.hidden;
        threads pool(3);
        for (const bool threaded : {false, true}) {
            const auto executor = threaded ? fg::device::executor_ref(pool) : fg::device::executor_ref();
            gdn_runner<Isa> together(layer, 6, 2, executor), alone(layer, 6, 0);
            // Rounds of a batch: lengths of each of the sequences.
            const std::size_t rounds[4][6] = {{3, 5, 1, 0, 65, 2}, {1, 1, 1, 1, 1, 1}, {0, 2, 7, 64, 1, 3}, {1, 1, 1, 1, 1, 1}};
            unsigned seed = 10;
            for (const auto& lengths : rounds) {
                std::vector<segment> segments;
                std::vector<float> x;
                std::size_t row = 0;
                for (int s = 5; s >= 0; --s) {  // the order of segments is not the order of sequences
                    const auto more = normals(lengths[s] * hidden, ++seed);
                    x.insert(x.end(), more.begin(), more.end());
                    segments.push_back({sequence_id{s}, row, lengths[s]});
                    row += lengths[s];
                }
                const auto y = together(segments, x);
                for (const segment& s : segments) {
                    const auto one = alone(static_cast<int>(s.sequence), rows_of(x, hidden, s.first, s.count));
                    CHECK(same_bits(one, rows_of(y, hidden, s.first, s.count)));
                    CHECK(same_bits(alone.content(static_cast<int>(s.sequence)), together.content(static_cast<int>(s.sequence))));
                }
            }
        }
        // Four equal sequences and a different one, decoded together: one distinct answer among the four.
        gdn_runner<Isa> run(layer, 5, 0);
        for (unsigned round = 0; round < 6; ++round) {
            const auto common = normals(hidden, 100 + round), other = normals(hidden, 200 + round);
            std::vector<segment> segments;
            std::vector<float> x;
            for (int s = 0; s < 5; ++s) {
                segments.push_back({sequence_id{s}, static_cast<std::size_t>(s), 1});
                const auto& row = s == 2 ? other : common;
                x.insert(x.end(), row.begin(), row.end());
            }
            const auto y = run(segments, x);
            for (const std::size_t s : std::initializer_list<std::size_t>{1, 3, 4})
                CHECK(same_bits(rows_of(y, hidden, s, 1), rows_of(y, hidden, 0, 1)));
            CHECK_FALSE(same_bits(rows_of(y, hidden, 2, 1), rows_of(y, hidden, 0, 1)));
        }
    });
}

TEST_CASE("C02 packed sequences of 65 and 64 tokens, 20 value features: the neighbour and what follows stay intact") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto body = [&]<class Variant>(fg::type_tag<Variant>) {
            const gdn_layer layer = gdn_layer::random({24, 1, 2, 12, 20, 4}, 5);
            const std::size_t hidden = layer.dims.hidden;
            auto x = normals(65 * hidden, 6);
            const auto first = x;
            x.resize(129 * hidden, 1e4f);
            gdn_runner<Isa, Variant> run(layer, 3, 0), alone(layer, 1, 0);
            run.poison(2, 7.0f);
            std::vector<float> y(131 * hidden, 1e4f);
            const std::vector<segment> segments = {{sequence_id{0}, 0, 65}, {sequence_id{1}, 65, 64}};
            const std::vector<attention::rope_position> positions(129);
            REQUIRE(run.forward({segments, positions}, {x.data(), 129, hidden}, {y.data() + hidden, 129, hidden}));
            CHECK(same_bits(rows_of(y, hidden, 1, 65), alone(0, first)));
            CHECK(same_bits(run.content(0), alone.content(0)));
            for (std::size_t c = 0; c < hidden; ++c) CHECK((y[c] == 1e4f && y[130 * hidden + c] == 1e4f));
            for (const float value : run.content(2)) REQUIRE(value == 7.0f);
        };
        body(fg::type_tag<grouped_silu>{});
        body(fg::type_tag<chunked>{});
    });
}

TEST_CASE("C15 segments of no tokens and batches of no rows change nothing") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random({16, 1, 2, 8, 8, 4}, 7);
        const std::size_t hidden = layer.dims.hidden;
        gdn_runner<Isa> run(layer, 4, 3), alone(layer, 4, 3);
        const auto x = normals(5 * hidden, 8);
        for (int s = 0; s < 4; ++s) run.poison(s, 0.25f), alone.poison(s, 0.25f);
        const auto y = run({{sequence_id{0}, 0, 0}, {sequence_id{1}, 0, 3}, {sequence_id{2}, 3, 0}, {sequence_id{3}, 3, 2}}, x);
        CHECK(same_bits(rows_of(y, hidden, 0, 3), alone(1, rows_of(x, hidden, 0, 3))));
        CHECK(same_bits(rows_of(y, hidden, 3, 2), alone(3, rows_of(x, hidden, 3, 2))));
        for (const int s : {0, 2}) {
            for (const float value : run.content(s)) REQUIRE(value == 0.25f);
            CHECK(run.state.length(sequence_id{s}) == 0);
            CHECK_FALSE(run.state.can_rollback(sequence_id{s}, 1));
        }
        const auto before = run.content(1);
        CHECK(run(std::vector<segment>{}, {}).empty());
        CHECK(run({{sequence_id{1}, 0, 0}, {sequence_id::padding, 0, 0}}, {}).empty());
        CHECK(same_bits(run.content(1), before));
        CHECK(run.state.length(sequence_id{1}) == 3);
    });
}

TEST_CASE("C16 padding rows are neither read nor written, and give zeros") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const gdn_layer layer = gdn_layer::random({16, 1, 2, 8, 8, 4}, 9);
        const std::size_t hidden = layer.dims.hidden;
        gdn_runner<Isa> run(layer, 3, 2), alone(layer, 3, 2);
        run.poison(1, 5.0f);
        auto x = normals(3 * hidden, 10);
        std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(hidden), hidden, quiet_nan);
        const auto y = run({{sequence_id{2}, 0, 1}, {sequence_id::padding, 1, 1}, {sequence_id{0}, 2, 1}}, x);
        CHECK(same_bits(rows_of(y, hidden, 0, 1), alone(2, rows_of(x, hidden, 0, 1))));
        CHECK(same_bits(rows_of(y, hidden, 2, 1), alone(0, rows_of(x, hidden, 2, 1))));
        for (const float value : rows_of(y, hidden, 1, 1)) CHECK((value == 0 && !std::signbit(value)));
        for (const float value : run.content(1)) REQUIRE(value == 5.0f);
        CHECK(same_bits(run.content(0), alone.content(0)));
        CHECK(same_bits(run.content(2), alone.content(2)));
        CHECK(run.state.length(sequence_id{1}) == 0);
        // Nothing but padding; several padding segments.
        const auto before = run.content(0);
        for (const float value : run({{sequence_id::padding, 0, 1}, {sequence_id::padding, 1, 2}}, x)) CHECK(value == 0);
        CHECK(same_bits(run.content(0), before));
    });
}

TEST_CASE("C17 a slot that held NaN and was cleared gives what a fresh one gives") {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (const std::size_t kernel : std::initializer_list<std::size_t>{1, 2, 4}) {
            const gdn_layer layer = gdn_layer::random({16, 1, 2, 8, 8, kernel}, 11);
            const std::size_t hidden = layer.dims.hidden;
            gdn_runner<Isa> used(layer, 1, 2), fresh(layer, 1, 2);
            used(0, normals(5 * hidden, 12));
            used.poison(0, quiet_nan);
            used.state.clear(sequence_id{0});
            CHECK(used.state.length(sequence_id{0}) == 0);
            CHECK_FALSE(used.state.can_rollback(sequence_id{0}, 1));
            const auto x = normals(3 * hidden, 13);
            for (std::size_t t = 0; t < 3; ++t)
                CHECK(same_bits(used(0, rows_of(x, hidden, t, 1)), fresh(0, rows_of(x, hidden, t, 1))));
            CHECK(same_bits(used.content(0), fresh.content(0)));
            for (const float value : used.content(0)) REQUIRE(std::isfinite(value));
        }
    });
}

TEST_CASE("Gated DeltaNet layer: y may be x; wrong batches, shapes and formats are returned errors that change nothing") {
    const gdn_layer layer = gdn_layer::random({16, 1, 2, 8, 8, 4}, 14);
    const std::size_t hidden = layer.dims.hidden;
    gdn_runner<fg::isa::baseline> run(layer, 2, 1), other(layer, 2, 1);
    auto x = normals(4 * hidden, 15);
    const auto y = run(0, x);
    const std::vector<segment> segments = {{sequence_id{0}, 0, 4}};
    const std::vector<attention::rope_position> positions(4);
    auto in_place = x;
    REQUIRE(other.forward({segments, positions}, {in_place.data(), 4, hidden}, {in_place.data(), 4, hidden}));
    CHECK(same_bits(in_place, y));

    const auto before = run.content(0);
    const auto code = [](const fg::status& s) { return s ? fg::errc::io : s.error().code; };
    std::vector<float> out(4 * hidden, 3.0f);
    const fg::matrix_view<const float> in(x.data(), 4, hidden);
    const fg::matrix_view<float> to(out.data(), 4, hidden);
    const auto with = [&](const std::vector<segment>& bad) { return code(run.forward({bad, positions}, in, to)); };
    CHECK(with({{sequence_id{2}, 0, 4}}) == fg::errc::invalid_argument);
    CHECK(with({{sequence_id{-2}, 0, 4}}) == fg::errc::invalid_argument);
    CHECK(with({{sequence_id{0}, 0, 3}}) == fg::errc::invalid_argument);
    CHECK(with({{sequence_id{0}, 0, 2}, {sequence_id{0}, 2, 2}}) == fg::errc::invalid_argument);
    CHECK(code(run.forward({segments, positions}, in.rows_range(0, 3), to)) == fg::errc::shape_mismatch);
    CHECK(code(run.forward({segments, positions}, in, to.cols_range(0, 8))) == fg::errc::shape_mismatch);

    fg::device::cpu<fg::isa::baseline> dev;
    fg::workspace scratch;
    const auto weights_with = [&](auto change) {
        auto w = layer.weights();
        auto d = layer.dims;
        change(w, d);
        return code(grouped_silu::forward<formats>(dev, scratch, d, w, run.state, {segments, positions}, in, to));
    };
    using weights = attention::gdn_weights;
    CHECK(weights_with([](weights& w, gdn_dims&) { w.qkv.rows -= 1; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.z.cols -= 1; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.out.row_bytes = 4; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.conv = w.conv.subspan(1); }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.norm = {}; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.dt_bias = {}; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.a_neg_exp = {}; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights&, gdn_dims& d) { d.key_dim = 4; }) == fg::errc::shape_mismatch);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.out.type = fg::quant::type_id{2}; }) == fg::errc::unsupported_format);
    CHECK(weights_with([](weights& w, gdn_dims&) { w.alpha.data = nullptr; }) == fg::errc::invalid_argument);
    CHECK(same_bits(run.content(0), before));
    CHECK(run.state.length(sequence_id{0}) == 4);
    CHECK(std::all_of(out.begin(), out.end(), [](float value) { return value == 3.0f; }));
}

// Prints a hash of the bits that each operator gives for fixed inputs, and fails where the bits of a row depend on the rest of
// its call. check_bits.py compiles this with different flags and compilers and compares what is printed.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "frugal/ops/activation/activation.hpp"
#include "frugal/ops/attention/attention.hpp"
#include "frugal/ops/block_select/block_select.hpp"
#include "frugal/ops/conv1d/conv1d.hpp"
#include "frugal/ops/elementwise/elementwise.hpp"
#include "frugal/ops/gated_delta_rule/gated_delta_rule.hpp"
#include "frugal/ops/hyper_connection/hyper_connection.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/ops/norm/norm.hpp"
#include "frugal/ops/rope/rope.hpp"
#include "frugal/ops/sampling/penalties.hpp"
#include "frugal/quant/codec.hpp"
#include "frugal/quant/formats/bf16.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/formats/q8_0.hpp"

namespace fg = frugal;
namespace ops = frugal::ops;
using fg::matrix_view;

namespace {

int failures = 0;

/// Values in [-1, 1) that are the same everywhere: made in integers.
struct numbers {
    std::uint64_t state;
    float next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<float>(static_cast<std::int32_t>(state >> 40)) * 0x1p-23f - 1.0f;
    }
    std::vector<float> take(std::size_t n, float scale = 1.0f) {
        std::vector<float> out(n);
        for (float& x : out) x = next() * scale;
        return out;
    }
};

class digest {
public:
    void add(std::span<const float> values) {
        for (const float value : values) hash_ = (hash_ ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211u;
    }
    void print(const char* isa, const char* what) const {
        std::printf("%s %s %016llx\n", isa, what, static_cast<unsigned long long>(hash_));
    }

private:
    std::uint64_t hash_ = 14695981039346656037u;
};

void need(const fg::status& done, const char* what) {
    if (done) return;
    std::printf("%s: %s\n", what, done.error().message.c_str());
    ++failures;
}

void same(const std::vector<float>& a, const std::vector<float>& b, const char* isa, const char* what) {
    if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
    std::printf("%s %s: the bits depend on how the rows are split\n", isa, what);
    ++failures;
}

/// make(first, count, y) computes rows first … first + count - 1 of y: all at once, one by one, and in uneven pieces.
template <class Make>
std::vector<float> in_any_split(std::size_t rows, std::size_t cols, const char* isa, const char* what, Make&& make) {
    std::vector<float> whole(rows * cols), single(rows * cols), pieces(rows * cols);
    make(std::size_t{0}, rows, matrix_view<float>(whole.data(), rows, cols));
    for (std::size_t r = 0; r < rows; ++r) make(r, std::size_t{1}, matrix_view<float>(single.data() + r * cols, 1, cols));
    for (std::size_t r = 0, n = 1; r < rows; r += n, n = n % 7 + 2) {
        n = n < rows - r ? n : rows - r;
        make(r, n, matrix_view<float>(pieces.data() + r * cols, n, cols));
    }
    same(whole, single, isa, what);
    same(whole, pieces, isa, what);
    return whole;
}

template <class Isa>
void attention(const char* isa) {
    fg::device::cpu<Isa> dev;
    fg::workspace scratch;
    digest out;
    constexpr std::size_t rows = 40;
    for (const std::size_t head_dim : {std::size_t{16}, std::size_t{40}, std::size_t{64}, std::size_t{256}})
        for (const std::size_t group : {std::size_t{1}, std::size_t{2}, std::size_t{8}}) {
            const ops::attention_heads shape{group, 1, head_dim};
            numbers random{head_dim * 16 + group};
            const std::vector<float> keys = random.take(64 * head_dim, 2.0f), values = random.take(64 * head_dim);
            const std::vector<float> q = random.take(rows * group * head_dim, 2.0f);
            const float *key = keys.data(), *value = values.data();
            const ops::key_value_view<float> cache{&key, &value, 6, head_dim};
            std::vector<ops::attention_row<float>> see(rows);
            for (std::size_t r = 0; r < rows; ++r) {
                see[r].cache = &cache;
                see[r].visible = r + 25;
            }
            out.add(in_any_split(rows, group * head_dim, isa, "attention", [&](std::size_t first, std::size_t n, auto y) {
                need(ops::attention(dev, scratch,
                                    matrix_view<const float>(q.data() + first * group * head_dim, n, group * head_dim),
                                    std::span<const ops::attention_row<float>>(see).subspan(first, n), shape, 0.25f, y),
                     "attention");
                need(ops::gate_heads(dev, matrix_view<const float>(q.data() + first * group * head_dim, n, group * head_dim),
                                     group, y),
                     "gate_heads");
            }));
        }
    out.print(isa, "attention");
}

template <class Isa>
void convolution(const char* isa) {
    fg::device::cpu<Isa> dev;
    digest out;
    constexpr std::size_t tokens = 23;
    for (const std::size_t channels : {std::size_t{8}, std::size_t{33}, std::size_t{200}}) {
        numbers random{channels};
        const std::vector<float> x = random.take(tokens * channels, 3.0f), w = random.take(4 * channels);
        std::vector<float> state;
        out.add(in_any_split(tokens, channels, isa, "causal_conv1d", [&](std::size_t first, std::size_t n, auto y) {
            if (first == 0) state.assign(3 * channels, 0.0f);
            need(ops::causal_conv1d<ops::activation::silu>(dev, w,
                                                           matrix_view<const float>(x.data() + first * channels, n, channels), 4,
                                                           1, matrix_view<float>(state.data(), 3, channels), y),
                 "causal_conv1d");
        }));
    }
    out.print(isa, "causal_conv1d");
}

template <class Isa>
void delta_rule(const char* isa) {
    fg::device::cpu<Isa> dev;
    fg::workspace scratch;
    constexpr std::size_t tokens = 37;
    for (const bool chunked : {false, true}) {
        digest out;
        for (const std::size_t dim : {std::size_t{20}, std::size_t{64}}) {
            const ops::delta_rule_dims dims{1, 2, dim, dim};
            numbers random{dim};
            const float size = 1.0f / static_cast<float>(dim);
            const std::vector<float> q = random.take(tokens * dim, size), k = random.take(tokens * dim, size);
            const std::vector<float> v = random.take(tokens * 2 * dim, 4.0f), a = random.take(tokens * 2, 4.0f);
            const std::vector<float> b = random.take(tokens * 2, 4.0f), decay = {-0.5f, -0.01f}, bias = {0.25f, 0.75f};
            std::vector<float> state, g(tokens * 2), beta(tokens * 2);
            need(ops::delta_gates(dev, decay, bias, matrix_view<const float>(a.data(), tokens, 2),
                                  matrix_view<const float>(b.data(), tokens, 2), matrix_view<float>(g.data(), tokens, 2),
                                  matrix_view<float>(beta.data(), tokens, 2)),
                 "delta_gates");
            const auto make = [&](std::size_t first, std::size_t n, matrix_view<float> y) {
                if (first == 0) state.assign(dims.state_size(), 0.0f);
                const auto part = [&](const std::vector<float>& all, std::size_t cols) {
                    return matrix_view<const float>(all.data() + first * cols, n, cols);
                };
                const auto rule = [&]<class Scan>() {
                    return ops::gated_delta_rule<ops::head_pairing::grouped, ops::state_layout::key_major, Scan>(
                        dev, scratch, part(q, dim), part(k, dim), part(v, 2 * dim), part(g, 2), part(beta, 2), dims, state, y);
                };
                need(chunked ? rule.template operator()<ops::scan::chunked<16>>()
                             : rule.template operator()<ops::scan::recurrent>(),
                     "gated_delta_rule");
            };
            std::vector<float> y(tokens * 2 * dim);
            if (chunked)  // chunks begin where a call does
                make(0, tokens, matrix_view<float>(y.data(), tokens, 2 * dim));
            else
                y = in_any_split(tokens, 2 * dim, isa, "gated_delta_rule", make);
            out.add(y);
            out.add(state);
        }
        out.print(isa, chunked ? "gated_delta_rule.chunked" : "gated_delta_rule.recurrent");
    }
}

template <class Isa, class Activations>
void products(const char* isa, const char* what) {
    fg::device::cpu<Isa, fg::counters_off, Activations> dev;
    fg::workspace scratch;
    digest out;
    using formats = fg::quant::list<fg::quant::bf16, fg::quant::q8_0, fg::quant::q4_k>;
    constexpr std::size_t w_rows = 35, cols = 512, rows = 19;
    const auto multiply = [&]<class Format>(fg::type_tag<Format>) {
        numbers random{7};
        const std::vector<float> w = random.take(w_rows * cols), x = random.take(rows * cols, 5.0f);
        std::vector<std::byte> blocks(w_rows * cols / Format::block_size * Format::block_bytes);
        if constexpr (requires { Format::encode(w.data(), blocks.data()); })
            for (std::size_t i = 0; i < w.size() / Format::block_size; ++i)
                Format::encode(w.data() + i * Format::block_size, blocks.data() + i * Format::block_bytes);
        else  // any bits but those of infinite scales are weights
            for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i % 13 * 4 + i % 3);
        const auto view = fg::quant::make_weight_view<formats>(Format::type, blocks, w_rows, cols);
        if (!view) return need(view.error(), what);
        out.add(in_any_split(rows, w_rows, isa, what, [&](std::size_t first, std::size_t n, auto y) {
            need(ops::matmul<formats>(dev, scratch, *view, matrix_view<const float>(x.data() + first * cols, n, cols), y), what);
        }));
    };
    multiply(fg::type_tag<fg::quant::bf16>());
    multiply(fg::type_tag<fg::quant::q8_0>());
    multiply(fg::type_tag<fg::quant::q4_k>());
    out.print(isa, what);
}

template <class Isa>
void small_operators(const char* isa) {
    fg::device::cpu<Isa> dev;
    fg::workspace scratch;
    digest out;
    constexpr std::size_t rows = 9, cols = 88;
    numbers random{3};
    const std::vector<float> x = random.take(rows * cols, 6.0f), z = random.take(rows * cols, 6.0f), w = random.take(cols);
    const auto part = [&](const std::vector<float>& all, std::size_t first, std::size_t n) {
        return matrix_view<const float>(all.data() + first * cols, n, cols);
    };
    const auto add = [&](const char* what, auto&& make) { out.add(in_any_split(rows, cols, isa, what, make)); };
    add("rms_norm", [&](std::size_t first, std::size_t n, auto y) {
        need(ops::rms_norm<ops::norm_weight::zero_centred>(dev, w, part(x, first, n), 1e-6f, y), "rms_norm");
    });
    add("gated_rms_norm", [&](std::size_t first, std::size_t n, auto y) {
        need(ops::gated_rms_norm<ops::activation::silu>(dev, w, part(x, first, n), part(z, first, n), 1e-6f, y),
             "gated_rms_norm");
    });
    add("swiglu", [&](std::size_t first, std::size_t n, auto y) {
        need(ops::swiglu(dev, part(x, first, n), part(z, first, n), y), "swiglu");
    });
    add("rope", [&](std::size_t first, std::size_t n, matrix_view<float> y) {
        std::memcpy(y.data(), x.data() + first * cols, n * cols * sizeof(float));
        std::vector<ops::rope_position> at(n);
        for (std::size_t r = 0; r < n; ++r) {
            const auto position = static_cast<std::int32_t>(1000 * (first + r));
            at[r] = {position, position, position};
        }
        need(ops::apply_rope(dev, scratch, ops::rope_table::make(1e6, 36), at, 2, 44, y), "rope");
    });
    std::vector<float> mean(rows * cols / 4);
    need(ops::gated_stream_mean(dev, part(x, 0, rows), part(z, 0, rows), 4, matrix_view<float>(mean.data(), rows, cols / 4)),
         "gated_stream_mean");
    out.add(mean);
    out.print(isa, "small");
}

void penalties(const char* isa) {
    digest out;
    numbers random{4};
    std::vector<float> logits = random.take(300, 0.1f);
    auto by = ops::penalties::create({.repeat = 1.3f, .presence = 0.95f, .frequency = 0.091f});
    if (!by) return need(by.error(), "penalties");
    for (std::int32_t token = 1; token < 11; ++token)  // each as often as its number
        for (std::int32_t i = 0; i < token; ++i) by->accept(token);
    need(by->apply(logits), "penalties");
    out.add(logits);
    out.print(isa, "penalties");
}

template <class Isa>
void all(const char* isa) {
    attention<Isa>(isa);
    convolution<Isa>(isa);
    delta_rule<Isa>(isa);
    products<Isa, fg::device::f32_activations>(isa, "matmul.f32");
    products<Isa, fg::device::q8_activations>(isa, "matmul.q8");
    products<Isa, fg::device::bf16_activations>(isa, "matmul.bf16");
    small_operators<Isa>(isa);
    penalties(isa);
}

}  // namespace

int main() {
    all<fg::isa::FRUGAL_BITS_ISA>(fg::isa::FRUGAL_BITS_ISA::name.data());
    return failures == 0 ? 0 : 1;
}

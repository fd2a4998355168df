// The gated delta rule of Qwen3.5's shape: a decoded token, whose cost is reading and writing the state, and 512 at once.
#include <cmath>
#include <string>
#include <vector>

#include "frugal/ops/gated_delta_rule/gated_delta_rule_chunked_cuda.cuh"
#include "frugal/ops/gated_delta_rule/gated_delta_rule_cuda.cuh"
#include "gpu.hpp"

namespace ops = frugal::ops;
using bench::array;
using pairing = ops::head_pairing::grouped;
using layout = ops::state_layout::key_major;

namespace {

constexpr std::size_t key_heads = 16, heads = 32, dim = 128;

struct inputs {
    std::vector<float> q, k, v, g, beta, state;
    explicit inputs(std::size_t tokens)
        : q(bench::normals(tokens * key_heads * dim, 1)),
          k(bench::normals(q.size(), 2)),
          v(bench::normals(tokens * heads * dim, 3)),
          g(bench::normals(tokens * heads, 4)),
          beta(bench::normals(tokens * heads, 5)),
          state(bench::normals(heads * dim * dim, 6, 0.1f)) {
        for (auto* rows : {&q, &k})
            for (std::size_t at = 0; at < rows->size(); at += dim) {
                double square = 0;
                for (std::size_t i = 0; i < dim; ++i)
                    square += static_cast<double>((*rows)[at + i]) * static_cast<double>((*rows)[at + i]);
                for (std::size_t i = 0; i < dim; ++i) (*rows)[at + i] /= static_cast<float>(std::sqrt(square));
            }
        for (float& x : g) x = -0.1f * x * x;
        for (float& x : beta) x = 1 / (1 + std::exp(-x));
    }
    /// Outputs of one value head, token by token in double.
    [[nodiscard]] std::vector<double> outputs(std::size_t head, std::size_t tokens) const {
        std::vector<double> s(state.begin() + static_cast<std::ptrdiff_t>(head * dim * dim),
                              state.begin() + static_cast<std::ptrdiff_t>((head + 1) * dim * dim));
        std::vector<double> out;
        for (std::size_t t = 0; t < tokens; ++t) {
            const std::size_t key = (t * key_heads + head / (heads / key_heads)) * dim;
            const double decay = std::exp(static_cast<double>(g[t * heads + head]));
            for (std::size_t c = 0; c < dim; ++c) {
                double predicted = 0, read = 0;
                for (std::size_t i = 0; i < dim; ++i) predicted += (s[i * dim + c] *= decay) * static_cast<double>(k[key + i]);
                const double delta = (static_cast<double>(v[(t * heads + head) * dim + c]) - predicted) *
                                     static_cast<double>(beta[t * heads + head]);
                for (std::size_t i = 0; i < dim; ++i)
                    read += (s[i * dim + c] += static_cast<double>(k[key + i]) * delta) * static_cast<double>(q[key + i]);
                out.push_back(read / std::sqrt(static_cast<double>(dim)));
            }
        }
        return out;
    }
};

using rule = cudaError_t (*)(const ops::delta_rule_dims&, frugal::matrix_view<const float>, frugal::matrix_view<const float>,
                             frugal::matrix_view<const float>, frugal::matrix_view<const float>, frugal::matrix_view<const float>,
                             float*, frugal::matrix_view<float>, cudaStream_t);

void one(bench::report& to, const char* name, rule start, std::size_t tokens) {
    const inputs in(tokens);
    const array<float> q(in.q), k(in.k), v(in.v), g(in.g), beta(in.beta), out(in.v.size());
    std::vector<array<float>> states;
    const double state_bytes = static_cast<double>(in.state.size()) * 4;
    for (std::size_t i = 0; i < to.copies(state_bytes); ++i) states.emplace_back(in.state);
    const auto run = [&](int i) {
        bench::must(
            start({key_heads, heads, dim, dim}, {q.data(), tokens, key_heads * dim}, {k.data(), tokens, key_heads * dim},
                  {v.data(), tokens, heads * dim}, {g.data(), tokens, heads}, {beta.data(), tokens, heads},
                  states[static_cast<std::size_t>(i) % states.size()].data(), {out.data(), tokens, heads * dim}, to.queue),
            "start the delta rule");
    };
    run(0);
    const auto all = out.to_host();
    std::vector<float> got;
    std::vector<double> want;
    for (const std::size_t head : {std::size_t{0}, heads - 1}) {
        const auto of_head = in.outputs(head, tokens);
        want.insert(want.end(), of_head.begin(), of_head.end());
        for (std::size_t t = 0; t < tokens; ++t)
            got.insert(got.end(), all.begin() + static_cast<std::ptrdiff_t>((t * heads + head) * dim),
                       all.begin() + static_cast<std::ptrdiff_t>((t * heads + head + 1) * dim));
    }
    // Of the token rule: decay, prediction, correction and reading of every number of the state.
    const double operations = 7.0 * static_cast<double>(tokens * in.state.size());
    to.add("gated_delta_rule/f32/" + std::string(name) + "/" + std::to_string(heads) + "x128x128x" + std::to_string(tokens),
           bench::relative(got, want) < 1e-5, {tokens == 1 ? 2 * state_bytes : 0.0, operations}, run);
}

}  // namespace

void bench::gated_delta_rule(report& to) {
    one(to, "token", ops::cuda::gated_delta_rule<pairing, layout>, 1);
    one(to, "token", ops::cuda::gated_delta_rule<pairing, layout>, 512);
    one(to, "chunked", ops::cuda::gated_delta_rule_chunked<pairing, layout>, 512);
    one(to, "chunked", ops::cuda::gated_delta_rule_chunked<pairing, layout>, 4096);
}

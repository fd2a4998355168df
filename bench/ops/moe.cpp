// Mixture of experts: the router, and the products of the chosen experts as one parallel region.
#include <algorithm>

#include "bench.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/ops/moe/router.hpp"

namespace bench {

namespace {

template <class Isa>
struct routing {
    static constexpr std::size_t experts = 256, top_k = 8;
    explicit routing(std::size_t count)
        : rows(count), original(normal(count * experts, 1)), logits(original), index(count * top_k), weight(count * top_k) {}

    // route overwrites its logits, so each run copies them first: a small part of the time.
    fg::status run() {
        std::copy(original.begin(), original.end(), logits.begin());
        return fg::ops::route(device, as_matrix(logits, rows), true, fg::matrix_view<std::int32_t>(index.data(), rows, top_k),
                              as_matrix(weight, rows));
    }

    std::string check() const {
        for (std::size_t r = 0; r < rows; ++r) {
            std::vector<float> sorted(original.begin() + static_cast<std::ptrdiff_t>(r * experts),
                                      original.begin() + static_cast<std::ptrdiff_t>((r + 1) * experts));
            std::sort(sorted.begin(), sorted.end(), std::greater<>());
            double total = 0;
            for (std::size_t i = 0; i < top_k; ++i) total += std::exp(static_cast<double>(sorted[i]));
            for (std::size_t i = 0; i < top_k; ++i) {
                const float logit = original[r * experts + static_cast<std::size_t>(index[r * top_k + i])];
                const double difference =
                    static_cast<double>(weight[r * top_k + i]) - std::exp(static_cast<double>(logit)) / total;
                if (logit != sorted[i] || std::fabs(difference) > 1e-5) return fg::concat("row ", r, ", choice ", i, " is wrong");
            }
        }
        return {};
    }

    work cost() const { return {float_bytes(original.size()), static_cast<double>(2 * original.size())}; }

    std::size_t rows;
    std::vector<float> original, logits;
    std::vector<std::int32_t> index;
    std::vector<float> weight;
    fg::device::cpu<Isa> device{executor()};
};

/// The eight experts of one token: gate matrices [512, 2048] out of a stack that exceeds the cache.
template <class Isa, class Format>
struct experts_of_a_token {
    static constexpr std::size_t rows = 512, cols = 2048, chosen = 8;
    experts_of_a_token()
        : stack(copies_beyond_cache(rows * cols / Format::block_size * Format::block_bytes) / chosen * chosen + chosen),
          w(rows, cols, stack, 1),
          x(normal(cols, 2)),
          y(chosen * rows),
          products(chosen) {}

    fg::status run() {
        const fg::workspace::scope scope(scratch);
        FRUGAL_TRY_ASSIGN(const auto ready, fg::ops::prepare_activations(device, scratch, as_matrix(std::as_const(x), 1)));
        for (std::size_t i = 0; i < chosen; ++i)
            products[i] = {w.view(turn++ % stack), ready, as_matrix(y, chosen).rows_range(i, 1)};
        return fg::ops::grouped_matmul<fg::quant::list<Format>>(device, scratch, products);
    }

    std::string check() const {
        std::vector<double> want;
        for (std::size_t r = 0; r < rows; ++r) want.push_back(w.dot(r, x.data()));
        return compare(std::span<const float>(y).first(rows), want, 1e-4);
    }

    work cost() const {
        return {static_cast<double>(chosen * w.view().bytes()) + float_bytes(x.size() + y.size()),
                static_cast<double>(2 * chosen * rows * cols)};
    }

    std::size_t stack, turn = 0;
    weights<Format> w;
    std::vector<float> x, y;
    std::vector<fg::ops::matmul_product> products;
    fg::device::cpu<Isa> device{executor()};
    fg::workspace scratch;
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t rows : {std::size_t{1}, std::size_t{64}})
            add_case<routing<Isa>>(name("moe_route", "f32", Isa::name, fg::concat(rows, "x256x8")), Isa::name, rows);
        const auto add_format = [&]<class Format>(fg::type_tag<Format>) {
            add_case<experts_of_a_token<Isa, Format>>(name("moe_grouped_matmul", Format::name, Isa::name, "8x512x2048x1"),
                                                      Isa::name);
        };
        add_format(fg::type_tag<fg::quant::bf16>{});
        add_format(fg::type_tag<fg::quant::q4_k>{});
        add_format(fg::type_tag<fg::quant::q6_k>{});
    });
}

}  // namespace bench

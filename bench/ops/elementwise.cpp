// The activation of a feed-forward network (12288 wide), and the additions of residual connections and of experts.
#include "frugal/ops/elementwise/elementwise.hpp"
#include "bench.hpp"

namespace bench {

namespace {

enum class kind { swiglu, add, add_scaled };

template <class Isa, kind Kind>
struct elementwise {
    elementwise(std::size_t count, std::size_t width)
        : rows(count), x(normal(count * width, 1)), up(normal(count * width, 2)), scale(normal(count, 3)), y(up) {}

    // Sums grow from run to run by x each, which stays far from overflow.
    fg::status run() {
        const auto input = as_matrix(std::as_const(x), rows);
        if constexpr (Kind == kind::swiglu)
            return fg::ops::swiglu(device, input, as_matrix(std::as_const(up), rows), as_matrix(y, rows));
        if constexpr (Kind == kind::add) return fg::ops::add(device, input, as_matrix(y, rows));
        return fg::ops::add_scaled(device, scale, input, as_matrix(y, rows));
    }

    // The first run of a sum starts from `up`.
    std::string check() const {
        std::vector<double> want(y.size());
        for (std::size_t i = 0; i < y.size(); ++i) {
            const double a = static_cast<double>(x[i]), b = static_cast<double>(up[i]);
            const double factor = Kind == kind::add ? 1 : static_cast<double>(scale[i / (y.size() / rows)]);
            want[i] = Kind == kind::swiglu ? a / (1 + std::exp(-a)) * b : b + factor * a;
        }
        return compare(y, want, 1e-5);
    }

    work cost() const {
        const std::size_t flops = Kind == kind::swiglu ? 5 : (Kind == kind::add ? 1 : 2);
        return {float_bytes(3 * y.size()), static_cast<double>(flops * y.size())};
    }

    std::size_t rows;
    std::vector<float> x, up, scale, y;
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{512}}) {
            add_case<elementwise<Isa, kind::swiglu>>(name("swiglu", "f32", Isa::name, fg::concat(tokens, "x12288")), Isa::name,
                                                     tokens, std::size_t{12288});
            add_case<elementwise<Isa, kind::add>>(name("add", "f32", Isa::name, fg::concat(tokens, "x4096")), Isa::name, tokens,
                                                  std::size_t{4096});
            add_case<elementwise<Isa, kind::add_scaled>>(name("add_scaled", "f32", Isa::name, fg::concat(tokens, "x4096")),
                                                         Isa::name, tokens, std::size_t{4096});
        }
    });
}

}  // namespace bench

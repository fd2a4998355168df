// Root-mean-square norm, the gated norm of a Gated DeltaNet head, and the l2 norm of queries and keys.
#include "frugal/ops/norm/norm.hpp"
#include "bench.hpp"
#include "frugal/ops/activation/activation.hpp"

namespace bench {

namespace {

enum class kind { rms, gated, l2 };

template <class Isa, kind Kind>
struct norm {
    static constexpr float eps = 1e-6f;
    norm(std::size_t count, std::size_t width)
        : rows(count),
          features(width),
          x(normal(count * width, 1)),
          gate(normal(count * width, 2)),
          w(normal(width, 3)),
          y(x.size()) {}

    fg::status run() {
        const auto input = as_matrix(std::as_const(x), rows);
        if constexpr (Kind == kind::rms)
            return fg::ops::rms_norm<fg::ops::norm_weight::zero_centred>(device, w, input, eps, as_matrix(y, rows));
        if constexpr (Kind == kind::gated)
            return fg::ops::gated_rms_norm<fg::ops::activation::silu>(device, w, input, as_matrix(std::as_const(gate), rows), eps,
                                                                      as_matrix(y, rows));
        return fg::ops::l2_norm(device, input, eps, as_matrix(y, rows));
    }

    std::string check() const {
        std::vector<double> want(y.size());
        for (std::size_t r = 0; r < rows; ++r) {
            double square = 0;
            for (std::size_t c = 0; c < features; ++c) square += std::pow(static_cast<double>(x[r * features + c]), 2);
            if (Kind != kind::l2) square /= static_cast<double>(features);
            for (std::size_t c = 0; c < features; ++c) {
                const double weight = static_cast<double>(w[c]), g = static_cast<double>(gate[r * features + c]);
                const double factor = Kind == kind::l2 ? 1 : (Kind == kind::rms ? 1 + weight : weight * g / (1 + std::exp(-g)));
                want[r * features + c] =
                    static_cast<double>(x[r * features + c]) / std::sqrt(square + static_cast<double>(eps)) * factor;
            }
        }
        return compare(y, want, 1e-5);
    }

    work cost() const {
        const std::size_t n = x.size();
        return {float_bytes((Kind == kind::gated ? 3 : 2) * n + (Kind == kind::l2 ? 0 : features)),
                static_cast<double>((Kind == kind::l2 ? 3 : (Kind == kind::rms ? 5 : 8)) * n)};
    }

    std::size_t rows, features;
    std::vector<float> x, gate, w, y;
    fg::device::cpu<Isa> device{executor()};
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{512}}) {
            add_case<norm<Isa, kind::rms>>(name("rms_norm", "f32", Isa::name, fg::concat(tokens, "x4096")), Isa::name, tokens,
                                           std::size_t{4096});
            add_case<norm<Isa, kind::gated>>(name("gated_rms_norm", "f32", Isa::name, fg::concat(tokens * 32, "x128")), Isa::name,
                                             tokens * 32, std::size_t{128});
            add_case<norm<Isa, kind::l2>>(name("l2_norm", "f32", Isa::name, fg::concat(tokens * 32, "x128")), Isa::name,
                                          tokens * 32, std::size_t{128});
        }
    });
}

}  // namespace bench

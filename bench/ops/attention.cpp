// Softmax attention of 16 heads of 256 features over 2 key-value heads: one token over a long context (decode), the same
// gathered through a list, and a causal prefill.
#include "frugal/ops/attention/attention.hpp"
#include "bench.hpp"
#include "frugal/tensor/scalar.hpp"

namespace bench {

namespace {

enum class kind { dense, gathered };

template <class Isa, class Scalar, kind Kind>
struct attend {
    static constexpr fg::ops::attention_heads shape{16, 2, 256};
    static constexpr std::size_t width = shape.kv_heads * shape.head_dim;
    static constexpr float scale = 0.0625f;

    /// Row r of `rows` sees context - rows + 1 + r keys; gathered: `picked` of them, evenly spread.
    attend(std::size_t rows, std::size_t context, std::size_t picked)
        : q(normal(rows * shape.heads * shape.head_dim, 1)),
          y(q.size()),
          keys(stored(context, 2)),
          values(stored(context, 3)),
          key_chunk(keys.data()),
          value_chunk(values.data()),
          cache{&key_chunk, &value_chunk, 40, width},
          see(rows) {
        for (std::size_t i = 0; Kind == kind::gathered && i < picked; ++i)
            list.push_back(static_cast<std::uint32_t>(i * context / picked));
        for (std::size_t r = 0; r < rows; ++r)
            see[r] = {&cache, Kind == kind::gathered ? list.data() : nullptr,
                      Kind == kind::gathered ? picked : context - rows + 1 + r};
    }

    fg::status run() {
        return fg::ops::attention<fg::device::cpu<Isa>, Scalar>(device, scratch, as_matrix(std::as_const(q), see.size()), see,
                                                                shape, scale, as_matrix(y, see.size()));
    }

    std::string check() const {
        std::vector<float> got;
        std::vector<double> want;
        for (std::size_t r = 0; r < see.size(); r += 37)
            for (std::size_t h = 0; h < shape.heads; h += 5) {
                const std::size_t head = h / (shape.heads / shape.kv_heads) * shape.head_dim;
                std::vector<double> sum(shape.head_dim);
                double total = 0;
                for (std::size_t i = 0; i < see[r].visible; ++i) {
                    const std::size_t at = (Kind == kind::gathered ? list[i] : i) * width + head;
                    double score = 0;
                    for (std::size_t d = 0; d < shape.head_dim; ++d)
                        score += static_cast<double>(q[(r * shape.heads + h) * shape.head_dim + d]) * number(keys[at + d]);
                    const double weight = std::exp(score * static_cast<double>(scale));
                    total += weight;
                    for (std::size_t d = 0; d < shape.head_dim; ++d) sum[d] += weight * number(values[at + d]);
                }
                for (std::size_t d = 0; d < shape.head_dim; ++d) {
                    got.push_back(y[(r * shape.heads + h) * shape.head_dim + d]);
                    want.push_back(sum[d] / total);
                }
            }
        return compare(got, want, 1e-4);
    }

    work cost() const {
        double pairs = 0, seen = 0;
        for (const auto& row : see) {
            pairs += static_cast<double>(row.visible);
            seen = static_cast<double>(row.visible) > seen ? static_cast<double>(row.visible) : seen;
        }
        return {seen * 2 * width * sizeof(Scalar) + float_bytes(q.size() + y.size()), 4 * pairs * shape.heads * shape.head_dim};
    }

    static double number(Scalar value) { return static_cast<double>(fg::to_float(value)); }
    static std::vector<Scalar> stored(std::size_t context, unsigned seed) {
        const std::vector<float> from = normal(width * 256, seed);
        std::vector<Scalar> out(context * width);
        for (std::size_t i = 0; i < out.size(); ++i) {
            if constexpr (std::is_same_v<Scalar, float>)
                out[i] = from[(i + i / from.size()) % from.size()];
            else
                out[i] = fg::to_half(from[(i + i / from.size()) % from.size()]);
        }
        return out;
    }

    std::vector<float> q, y;
    std::vector<Scalar> keys, values;
    const Scalar *key_chunk, *value_chunk;
    fg::ops::key_value_view<Scalar> cache;
    std::vector<std::uint32_t> list;
    std::vector<fg::ops::attention_row<Scalar>> see;
    fg::device::cpu<Isa> device{executor()};
    fg::workspace scratch;
};

}  // namespace

void register_benchmarks() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        const auto add_scalar = [&]<class Scalar>(fg::type_tag<Scalar>, const char* stored) {
            const auto one = [&]<kind Kind>(std::integral_constant<kind, Kind>, const char* op, std::size_t rows,
                                            std::size_t context, std::size_t picked) {
                add_case<attend<Isa, Scalar, Kind>>(
                    name(op, stored, Isa::name, fg::concat(rows, 'x', picked == 0 ? context : picked)), Isa::name, rows, context,
                    picked);
            };
            one(std::integral_constant<kind, kind::dense>{}, "attention_decode", 1, 16384, 0);
            one(std::integral_constant<kind, kind::gathered>{}, "attention_gathered", 1, 16384, 2048);
            one(std::integral_constant<kind, kind::dense>{}, "attention_prefill", 128, 1024, 0);
        };
        add_scalar(fg::type_tag<float>{}, "f32");
        add_scalar(fg::type_tag<fg::half>{}, "f16");
    });
}

}  // namespace bench

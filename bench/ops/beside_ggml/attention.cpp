// Softmax attention of 24 heads of 256 features over 2 key-value heads in half precision: a decoded token, and 64 at once.
#include "frugal/ops/attention/attention.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "frugal/attention/token_store.hpp"
#include "frugal/tensor/scalar.hpp"
#include "frugal/tensor/workspace.hpp"
#include "operators.hpp"
#include "prepared_graph.hpp"

namespace bench {

namespace {

constexpr fg::ops::attention_heads heads{24, 2, 256};
constexpr std::size_t width = heads.kv_heads * heads.head_dim, q_width = heads.heads * heads.head_dim;
constexpr float scale = 0.0625f;

std::vector<fg::half> stored(std::size_t context, unsigned seed) {
    std::vector<fg::half> from, out(context * width);
    for (const float each : normal(width * 256, seed)) from.push_back(fg::to_half(each));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = from[(i + i / from.size()) % from.size()];
    return out;
}

/// Row r of `rows` sees context - rows + 1 + r keys. Scores deviate by 3, so that some keys stand out, as they do in models;
/// were all alike, the values would cancel and leave the peer's sums in half precision little but rounding.
struct inputs {
    inputs(std::size_t count, std::size_t length)
        : rows(count), context(length), q(normal(count * q_width, 1, 3.0f)), keys(stored(length, 2)), values(stored(length, 3)) {}
    [[nodiscard]] std::size_t visible(std::size_t row) const { return context - rows + 1 + row; }
    std::size_t rows, context;
    std::vector<float> q;
    std::vector<fg::half> keys, values;  // [context, kv heads, features]
};

void add_reference(const inputs& in, contest& out) {
    for (std::size_t r = 0; r < in.rows; r += 29)
        for (std::size_t h = 0; h < heads.heads; h += 11) {
            const std::size_t at = h / (heads.heads / heads.kv_heads) * heads.head_dim;
            const float* const query = in.q.data() + r * q_width + h * heads.head_dim;
            std::vector<double> sum(heads.head_dim);
            double total = 0;
            for (std::size_t i = 0; i < in.visible(r); ++i) {
                double score = 0;
                for (std::size_t d = 0; d < heads.head_dim; ++d)
                    score += static_cast<double>(query[d]) * static_cast<double>(fg::to_float(in.keys[i * width + at + d]));
                const double weight = std::exp(score * static_cast<double>(scale));
                total += weight;
                for (std::size_t d = 0; d < heads.head_dim; ++d)
                    sum[d] += weight * static_cast<double>(fg::to_float(in.values[i * width + at + d]));
            }
            for (std::size_t d = 0; d < heads.head_dim; ++d) {
                out.checked.push_back(r * q_width + h * heads.head_dim + d);
                out.want.push_back(sum[d] / total);
            }
        }
}

/// Keys and values as our caches keep them.
struct caches {
    using store = fg::attention::token_store<fg::half>;
    [[nodiscard]] static fg::status fill(store& to, const std::vector<fg::half>& rows) {
        FRUGAL_TRY(to.reserve(rows.size() / width));
        for (std::size_t i = 0; i < rows.size() / width; ++i)
            std::memcpy(to.reserved_row(i), rows.data() + i * width, width * sizeof(fg::half));
        to.commit(rows.size() / width);
        return {};
    }
    store keys{width}, values{width};
};

template <class Isa>
class our_attention {
public:
    our_attention(std::shared_ptr<const inputs> in, std::shared_ptr<const caches> held, std::size_t threads)
        : in_(std::move(in)),
          held_(std::move(held)),
          device_(executor(threads)),
          cache_{held_->keys.chunks(), held_->values.chunks(), caches::store::chunk_shift, width},
          y_(in_->q.size()) {
        for (std::size_t r = 0; r < in_->rows; ++r) see_.push_back({&cache_, nullptr, in_->visible(r)});
    }
    our_attention(const our_attention&) = delete;
    our_attention& operator=(const our_attention&) = delete;

    [[nodiscard]] fg::status run() {
        return fg::ops::attention<fg::device::cpu<Isa>, fg::half>(device_, scratch_, as_matrix(in_->q, in_->rows), see_, heads,
                                                                  scale, as_matrix(y_, in_->rows));
    }
    [[nodiscard]] std::vector<float> result() const { return y_; }

private:
    std::shared_ptr<const inputs> in_;
    std::shared_ptr<const caches> held_;
    fg::device::cpu<Isa> device_;
    fg::workspace scratch_;
    fg::ops::key_value_view<fg::half> cache_;
    std::vector<fg::ops::attention_row<fg::half>> see_;
    std::vector<float> y_;
};

/// ggml_flash_attn_ext over a cache as llama.cpp keeps it, sums in f32.
fg::result<std::shared_ptr<peer::prepared_graph>> peer_attention(const peer::ggml& g, const inputs& in, std::size_t threads) {
    const auto out = std::make_shared<peer::prepared_graph>(g, 32, threads);
    peer::ggml_context* const c = out->context();
    std::vector<fg::half> mask(in.rows * in.context);
    const fg::half hidden = fg::to_half(-std::numeric_limits<float>::infinity());
    for (std::size_t r = 0; r < in.rows; ++r)
        for (std::size_t i = in.visible(r); i < in.context; ++i) mask[r * in.context + i] = hidden;
    const auto cached = [&](const std::vector<fg::half>& values) {
        const std::size_t half = sizeof(fg::half);
        return out->view(out->input(peer::f16, {width, in.context}, values), heads.head_dim, in.context, heads.kv_heads,
                         width * half, heads.head_dim * half);
    };
    const auto q = g.ggml_permute(c, out->input({heads.head_dim, heads.heads, in.rows}, in.q), 0, 2, 1, 3);
    const auto result = g.ggml_flash_attn_ext(c, q, cached(in.keys), cached(in.values),
                                              out->input(peer::f16, {in.context, in.rows}, std::move(mask)), scale, 0.0f, 0.0f);
    g.ggml_prec_set_acc(result, peer::accumulate_f32);
    out->expand(result);
    FRUGAL_TRY(out->allocate(result, in.q.size()));
    return out;
}

fg::status measure(contests& all, std::string figure, std::size_t rows, std::size_t context, bound what) {
    const auto in = std::make_shared<const inputs>(rows, context);
    contest out;
    out.figure = std::move(figure);
    out.op = fg::concat("attention, ", rows == 1 ? "decode" : "prefill");
    out.format = "f16";
    out.shape = fg::concat(rows, 'x', heads.heads, '/', heads.kv_heads, 'x', heads.head_dim, ", ", context);
    out.threads = executor().concurrency();
    out.bound = what;
    double pairs = 0;
    for (std::size_t r = 0; r < rows; ++r) pairs += static_cast<double>(in->visible(r));
    out.cost = {2.0 * static_cast<double>(context * width * sizeof(fg::half)), 4 * pairs * q_width};
    add_reference(*in, out);
    const auto held = std::make_shared<caches>();
    FRUGAL_TRY(caches::fill(held->keys, in->keys));
    FRUGAL_TRY(caches::fill(held->values, in->values));
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) {
        out.enter(std::string(Isa::name), true, std::make_shared<our_attention<Isa>>(in, held, out.threads), 1e-3);
    });
    if (all.peer() != nullptr) {
        FRUGAL_TRY_ASSIGN(const auto theirs, peer_attention(*all.peer(), *in, out.threads));
        // Decoding, it adds up values in half precision: the worst of a head is off by a tenth of their size.
        out.enter("flash_attn_ext", false, theirs, 0.2);
    }
    return all.hold(std::move(out));
}

}  // namespace

fg::status measure_attention(contests& all) {
    FRUGAL_TRY(measure(all, "attention.decode", 1, 32768, bound::reading));
    FRUGAL_TRY(measure(all, "attention.decode_131k", 1, 131072, bound::reading));
    return measure(all, "attention.prefill", 64, 32768, bound::f32);
}

}  // namespace bench

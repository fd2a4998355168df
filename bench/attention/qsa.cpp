// A QSA layer of Qwen3.8-Flash-Next's shape over growing contexts, beside the same layer of ggml's operators as llama.cpp puts
// them together, in one process on the same data.
//
// The projections of queries, keys, values and output are left out on both sides: they do not depend on the context. The
// indexer's own projections (8-bit activations on both sides; ours from images), norms, rotations, caches, scores, choice,
// attention and gate are in. Both sides compute the same heads; that is checked before anything is timed, with indexer keys in f32
// and at a token where both choose the same cells.
// Our indexer keys are bf16, ggml's f16; `f32 keys` and `int8 keys` show ours in those.
// One thread is timed by its processor time; rounds of both sides alternate, and medians are shown.
//
// FRUGAL_PEER lists ggml's libraries (bench/peer/get_ggml.sh); without them our side alone is timed.
#include "frugal/attention/qsa/qsa.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/core/version.hpp"
#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/reuse/weights/image_products.hpp"
#include "ggml.hpp"
#include "qsa_data.hpp"
#include "qsa_peer.hpp"
#include "qsa_token.hpp"

namespace bench {

namespace {

namespace attention = fg::attention;
using norm_weight = fg::ops::norm_weight::zero_centred;

/// Hands out projections that were computed before, and keeps what would go into the output's; the indexer's are `Rest`'s.
template <class Rest>
struct given_products {
    const qsa_data& data;
    std::vector<float>& gated;
    Rest rest;

    [[nodiscard]] fg::result<fg::reuse::product_input> share(fg::matrix_view<const float> x) { return rest.share(x); }
    template <class Product>
    [[nodiscard]] fg::status multiply(const fg::reuse::product_input& input,
                                      const std::array<fg::matrix_view<float>, Product::size>& y) {
        const fg::matrix_view<const float> x = input.x;
        if constexpr (Product::is_small) {
            return rest.template multiply<Product>(input, y);
        } else if constexpr (std::is_same_v<Product, attention::qkv_product>) {
            const std::array<const float*, 3> from = {data.queries_and_gates.data(), data.keys.data(), data.values.data()};
            for (std::size_t i = 0; i < 3; ++i) std::memcpy(y[i].data(), from[i], y[i].rows() * y[i].cols() * sizeof(float));
        } else {
            gated.assign(x.data(), x.data() + x.rows() * x.cols());
            std::memset(y[0].data(), 0, y[0].rows() * y[0].cols() * sizeof(float));
        }
        return {};
    }
};

/// Our layer: half-precision keys and values, indexer keys of `IndexScalar`.
template <class Isa, class IndexScalar>
class layer {
    using variant = attention::qsa<shape::ratio, norm_weight, fg::half, IndexScalar>;
    using layout_type = fg::reuse::qsa_layout;
    using listed = fg::quant::list<fg::quant::f32, fg::quant::q8_0>;
    using device = fg::device::packed_cpu<Isa, fg::counters_off, listed, fg::device::q8_activations>;
    using store = fg::reuse::image_store<attention::qsa_products, device, listed>;

public:
    /// `most`: tokens that the cache is to hold.
    explicit layer(const qsa_data& data, std::size_t most)
        : rope_(fg::ops::rope_table::make(static_cast<double>(shape::theta), shape::rotary_dim, shape::sections)),
          data_(data),
          store_(store::create({.layers = 1}).value()) {
        dims_.hidden = shape::hidden;
        dims_.heads = shape::heads;
        dims_.kv_heads = shape::kv_heads;
        dims_.head_dim = shape::head_dim;
        dims_.eps = shape::eps;
        dims_.rope = &rope_;
        dims_.index_heads = shape::index_heads;
        dims_.index_dim = shape::index_dim;
        dims_.budget = shape::budget;
        weights_.q_norm = weights_.k_norm = data.head_norm;
        weights_.indexer_q_norm = weights_.indexer_k_norm = data.index_norm;
        weights_.indexer_q = data.index_q.view();
        weights_.indexer_k = data.index_k.view();
        cache_ = std::make_unique<typename variant::state>(variant::create_state(dims_, 1, most).value());
        layout_ = std::make_unique<layout_type>(layout_type::create(shape::ratio, 1).value());
    }
    layer(const layer&) = delete;
    layer& operator=(const layer&) = delete;

    /// Fills cache and layout up to `length` tokens with the past of the data.
    [[nodiscard]] fg::status grow(std::size_t length) {
        const std::size_t begin = cache_->length(sequence);
        FRUGAL_TRY(write_past<norm_weight>(device_, scratch_, rope_, data_, *cache_, length));
        return append(length - begin);
    }

    // What a pass asks of who multiplies.
    using formats = listed;
    using sharing = fg::reuse::default_activation_sharing;
    template <class List, class Device>
    fg::result<given_products<typename store::step>> begin(Device& dev, fg::workspace& scratch, std::size_t number,
                                                           const typename List::weights& w) {
        FRUGAL_TRY_ASSIGN(auto step, store_.begin(dev, scratch, number, w));
        return given_products<typename store::step>{data_, gated_, std::move(step)};
    }

    /// `tokens` at once behind what is there, then forgotten again.
    [[nodiscard]] fg::status run(std::size_t tokens) {
        FRUGAL_TRY(append(tokens));
        const attention::segment part{sequence, 0, tokens};
        y_.resize(tokens * shape::hidden);
        {
            fg::workspace::scope scope(scratch_);
            fg::reuse::cpu_pass pass(device_, scratch_, *this);
            const attention::batch rows{{&part, 1}, positions_};
            FRUGAL_TRY_ASSIGN(const attention::step alone, attention::detail::lone_step(pass, dims_, rows));
            const attention::shared_step<layout_type> step{alone, *layout_};
            FRUGAL_TRY(variant::forward(pass, 0, dims_, weights_, *cache_, step,
                                        fg::matrix_view<const float>(data_.x.data(), tokens, shape::hidden),
                                        fg::matrix_view<float>(y_.data(), tokens, shape::hidden)));
        }
        FRUGAL_TRY(cache_->rollback(sequence, tokens));
        return layout_->rollback(sequence, tokens);
    }
    /// Gated heads of the latest run: [tokens, heads * head_dim].
    [[nodiscard]] const std::vector<float>& result() const { return gated_; }
    [[nodiscard]] std::size_t bytes() const { return cache_->bytes(); }

private:
    static constexpr attention::sequence_id sequence{0};

    [[nodiscard]] fg::status append(std::size_t tokens) {
        positions_ = text_positions(layout_->length(sequence), tokens);
        const attention::segment part{sequence, 0, tokens};
        return layout_->append({{&part, 1}, positions_});
    }

    fg::ops::rope_table rope_;
    attention::qsa_dims dims_;
    attention::qsa_weights weights_;
    const qsa_data& data_;
    store store_;
    std::vector<float> gated_;
    std::unique_ptr<typename variant::state> cache_;
    std::unique_ptr<layout_type> layout_;
    std::vector<fg::ops::rope_position> positions_;
    std::vector<float> y_;
    device device_{executor()};
    fg::workspace scratch_;
};

/// Medians of one length, in seconds.
struct timed {
    std::size_t length = 0, tokens = 0;
    double ours = 0, peer = 0;
    std::size_t bytes = 0;  // of our cache
};

/// Rounds of both sides in turn, after one of each to warm up; a round takes `repeat` calls. The peer may be null.
template <class Layer>
fg::result<timed> time_both(Layer& ours, const peer::qsa_layer* theirs, std::size_t length, std::size_t tokens, int rounds,
                            int repeat) {
    std::vector<double> our_seconds, peer_seconds;
    for (int round = -1; round < rounds; ++round) {
        double start = measured_seconds();
        for (int i = 0; i < repeat; ++i) FRUGAL_TRY(ours.run(tokens));
        if (round >= 0) our_seconds.push_back((measured_seconds() - start) / repeat);
        if (theirs == nullptr) continue;
        start = measured_seconds();
        FRUGAL_TRY(theirs->run(executor().concurrency()));
        if (round >= 0) peer_seconds.push_back(measured_seconds() - start);
    }
    return timed{length, tokens, median(our_seconds), theirs != nullptr ? median(peer_seconds) : 0.0, ours.bytes()};
}

/// Root mean square of the difference of both sides' heads, relative to that of the heads.
double difference(const std::vector<float>& ours, const std::vector<float>& theirs) {
    double off = 0, square = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
        const double wanted = static_cast<double>(theirs[i]), error = static_cast<double>(ours[i]) - wanted;
        off += error * error;
        square += wanted * wanted;
    }
    return std::sqrt(off / square);
}

/// Both sides attend to whole blocks and a tail; where the tail has ratio - 1 tokens, llama.cpp's count of cells leaves none
/// over for a part of one more block. ggml adds up values in half precision, which is most of the difference; one other block
/// of 512 would make it four times as large.
template <class Isa>
fg::status check(const peer::ggml& library) {
    const qsa_data data(1);
    const std::size_t before = 8 * 1024 + shape::ratio - 2;
    layer<Isa, float> ours(data, before + 1);
    FRUGAL_TRY(ours.grow(before));
    FRUGAL_TRY(ours.run(1));
    FRUGAL_TRY_ASSIGN(const auto theirs, peer::qsa_layer::make(library, data, before, 1));
    FRUGAL_TRY(theirs->run(1));
    const double off = difference(ours.result(), theirs->result());
    std::printf("difference from ggml's heads: %.2g of their size\n", off);
    if (!(off < 0.02)) return fg::fail(fg::errc::invalid_argument, "our heads and ggml's differ by ", off);
    return {};
}

void print(const char* what, const std::vector<timed>& all) {
    std::printf("\n%-9s %10s %8s %12s %12s %8s %12s\n", what, "tokens", "new", "ours ms", "ggml ms", "ratio", "cache MiB");
    for (const timed& t : all) {
        std::printf("%-9s %10zu %8zu %12.4g ", "", t.length, t.tokens, t.ours * 1e3);
        if (t.peer > 0)
            std::printf("%12.4g %8.3g", t.peer * 1e3, t.peer / t.ours);
        else
            std::printf("%12s %8s", "-", "-");
        std::printf(" %12.5g\n", static_cast<double>(t.bytes) / 1048576);
    }
}

json points(const std::vector<timed>& all) {
    json out = json::array();
    for (const timed& t : all)
        out.push_back({{"length", t.length}, {"tokens", t.tokens}, {"ours_ms", t.ours * 1e3}, {"ggml_ms", t.peer * 1e3}});
    return out;
}

const timed* at(const std::vector<timed>& all, std::size_t length) {
    for (const timed& t : all)
        if (t.length == length) return &t;
    return nullptr;
}

constexpr std::size_t k32 = 32768, k131 = 131072, k176 = 180224, k229 = 229376, million = 1 << 20;
constexpr std::size_t ubatch = 512;

template <class Isa>
fg::status run(const peer::ggml* library, json& out) {
    if (library != nullptr) FRUGAL_TRY(check<Isa>(*library));
    const qsa_data data(ubatch);
    std::vector<timed> decode, f32_keys, int8_keys, prefill, token;
    {
        std::unique_ptr<peer::qsa_layer> theirs;
        if (library != nullptr) {
            FRUGAL_TRY_ASSIGN(theirs, peer::qsa_layer::make(*library, data, k131, 1));
        }
        const auto with_keys = [&]<class Scalar>(fg::type_tag<Scalar>, std::vector<timed>& to) -> fg::status {
            layer<Isa, Scalar> ours(data, k131 + 1);
            FRUGAL_TRY(ours.grow(k131));
            FRUGAL_TRY_ASSIGN(auto one, time_both(ours, theirs.get(), k131, 1, 9, 8));
            to.push_back(one);
            return {};
        };
        FRUGAL_TRY(with_keys(fg::type_tag<float>{}, f32_keys));
        FRUGAL_TRY(with_keys(fg::type_tag<std::int8_t>{}, int8_keys));
    }
    {
        layer<Isa, fg::bfloat16> ours(data, million + ubatch);
        for (const std::size_t length : {k32, k131, k176, k229, million}) {
            std::fprintf(stderr, "%zu tokens\n", length);
            FRUGAL_TRY(ours.grow(length));
            // ggml's graph keeps every intermediate: a longer prefill would need tens of gigabytes.
            for (const std::size_t tokens : {std::size_t{1}, ubatch}) {
                std::unique_ptr<peer::qsa_layer> theirs;
                if (library != nullptr && length <= (tokens == 1 ? k229 : k32)) {
                    FRUGAL_TRY_ASSIGN(theirs, peer::qsa_layer::make(*library, data, length, tokens));
                }
                FRUGAL_TRY_ASSIGN(auto one,
                                  time_both(ours, theirs.get(), length, tokens, tokens == 1 ? 9 : 3, tokens == 1 ? 8 : 1));
                (tokens == 1 ? decode : prefill).push_back(one);
            }
        }
    }
    {
        constexpr std::size_t lengths[] = {k32, k131, k176, k229};
        token_model<Isa> model(data);
        for (const std::size_t length : lengths) FRUGAL_TRY(model.add_past(length));
        // Experts are packed when they are first chosen: that is no part of a token's time.
        for (int i = 0; i < 400; ++i) FRUGAL_TRY(model.run(0));
        std::vector<double> seconds[std::size(lengths)];
        for (int round = 0; round < 26; ++round)
            for (std::size_t i = 0; i < std::size(lengths); ++i) {
                const double start = measured_seconds();
                FRUGAL_TRY(model.run(i));
                if (round >= 2) seconds[i].push_back(measured_seconds() - start);
            }
        for (std::size_t i = 0; i < std::size(lengths); ++i)
            token.push_back({lengths[i], 1, median(seconds[i]) * static_cast<double>(model.groups), 0, 0});
    }
    print("decode", decode);
    print("f32 keys", f32_keys);
    print("int8 keys", int8_keys);
    print("prefill", prefill);
    print("48 layers", token);
    out = {{"context", context(executor().concurrency())},
           {"growth", {{"decode", points(decode)}, {"prefill", points(prefill)}, {"token", points(token)}}}};
    out["context"]["isa"] = Isa::name;
    const auto figure = [](const char* name, double value) { std::printf("figure qsa.%s %.4g\n", name, value); };
    const auto ratio = [](const timed* t) { return t->peer / t->ours; };
    if (library != nullptr) {
        figure("decode_vs_ggml_32k", ratio(at(decode, k32)));
        figure("decode_vs_ggml_131k", ratio(at(decode, k131)));
        figure("decode_vs_ggml_131k_f32_keys", ratio(at(f32_keys, k131)));
        figure("decode_vs_ggml_131k_int8_keys", ratio(at(int8_keys, k131)));
        figure("decode_vs_ggml_229k", ratio(at(decode, k229)));
        figure("prefill_vs_ggml_32k", ratio(at(prefill, k32)));
    }
    figure("layer_229k_over_32k", at(decode, k229)->ours / at(decode, k32)->ours);
    figure("token_229k_over_32k", at(token, k229)->ours / at(token, k32)->ours);
    figure("million_tokens_ms", at(decode, million)->ours * 1e3);
    figure("million_tokens_cache_mebibytes", static_cast<double>(at(decode, million)->bytes) / 1048576);
    return {};
}

fg::status run(json& out) {
    std::unique_ptr<peer::ggml> library;
    if (auto loaded = peer::ggml::load(); loaded)
        library = std::make_unique<peer::ggml>(*std::move(loaded));
    else
        std::fprintf(stderr, "no peer to compare with: %s\n", loaded.error().message.c_str());
    return fg::device::dispatch<fg::isa::all>(
        [&]<class Isa>(fg::type_tag<Isa>) -> fg::status { return run<Isa>(library.get(), out); });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("qsa", argc, argv, bench::run); }

// What load-skip saves: a decode at the shape of Qwen3.5-2B on a device that keeps weight images, with the host's copies of
// the weights prepared in every step (A, reload_always) or only where somebody reads them (B, skip_resident).
//
// One process runs the arms A B B A, each from nothing: two requests of 24 tokens. The device is made of this machine: it
// multiplies with 8-bit images and adds a fixed wait to every product, as a device that works beside the host would.
// The vocabulary is cut: the head is no layer.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/core/version.hpp"
#include "frugal/device/image.hpp"
#include "frugal/model/transformer.hpp"
#include "frugal/ops/matmul/matmul.hpp"
#include "frugal/quant/formats/q4_k.hpp"
#include "frugal/quant/formats/q8_0.hpp"
#include "frugal/reuse/weights/weight_loading.hpp"

namespace bench {

namespace {

using clock_type = std::chrono::steady_clock;
constexpr std::size_t requests = 2, tokens = 24;
constexpr std::chrono::microseconds device_wait{50};

/// Multiplies on this CPU with 8-bit images that it packs from f32, and waits a little for every product.
template <class Isa>
class waiting_device : public fg::device::cpu<Isa, fg::counters_on> {
public:
    using fg::device::cpu<Isa, fg::counters_on>::cpu;
    using source = fg::matrix_view<const float>;

    class image {
    public:
        [[nodiscard]] std::size_t bytes() const noexcept { return blocks.size(); }
        fg::buffer<std::byte> blocks;
        std::vector<fg::quant::weight_view> parts;
    };

    [[nodiscard]] fg::result<image> pack(std::span<const source> parts) {
        using format = fg::quant::q8_0;
        std::size_t bytes = 0;
        for (const source& part : parts) bytes += part.rows() * part.cols() / format::block_size * format::block_bytes;
        image out;
        FRUGAL_TRY_ASSIGN(out.blocks, fg::buffer<std::byte>::allocate(bytes));
        std::byte* to = out.blocks.data();
        for (const source& part : parts) {
            const std::size_t row_bytes = part.cols() / format::block_size * format::block_bytes;
            this->run_ranges(part.rows(), 16, [&](std::size_t begin, std::size_t end) {
                for (std::size_t r = begin; r < end; ++r)
                    for (std::size_t b = 0; b < part.cols() / format::block_size; ++b)
                        format::encode(part.row(r) + b * format::block_size, to + r * row_bytes + b * format::block_bytes);
            });
            out.parts.push_back({format::type, to, part.rows(), part.cols(), row_bytes});
            to += part.rows() * row_bytes;
        }
        return out;
    }
    [[nodiscard]] fg::status multiply(fg::workspace& scratch, const image& w, fg::matrix_view<const float> x,
                                      std::span<const fg::matrix_view<float>> y) {
        for (std::size_t i = 0; i < y.size(); ++i)
            FRUGAL_TRY(fg::ops::matmul<fg::quant::list<fg::quant::q8_0>>(*this, scratch, w.parts[i], x, y[i]));
        // Not a sleep: that would take as long as the scheduler likes.
        const auto end = clock_type::now() + device_wait;
        while (clock_type::now() < end) {
        }
        return {};
    }
    [[nodiscard]] std::uint64_t generation() const noexcept { return 0; }
};

using formats = fg::quant::list<fg::quant::q4_k>;

/// 18 Gated DeltaNet and 6 full-attention layers.
fg::model::config qwen35_2b() {
    fg::model::config c;
    c.architecture = std::string(fg::model::qwen35::name);
    c.vocabulary = 8192;
    c.hidden = 2048;
    c.context_length = 4096;
    for (std::size_t i = 0; i < 24; ++i)
        c.layers.push_back(i % 4 == 3 ? fg::model::layer_kind::attention : fg::model::layer_kind::gdn);
    c.heads = 8;
    c.kv_heads = 2;
    c.head_dim = 256;
    c.rotary_dim = 64;
    c.rope_theta = 1e7f;
    c.key_heads = c.value_heads = 16;
    c.key_dim = c.value_dim = 128;
    c.conv_kernel = 4;
    c.intermediate = 6144;
    return c;
}

/// Weights that look into one pool of random blocks, each from a place of its own.
class random_weights {
public:
    random_weights() : pool_(random_blocks<fg::quant::q4_k>(pool_blocks, 1)) {}

    [[nodiscard]] fg::model::weights<fg::model::qwen35> make(const fg::model::config& c) {
        next_ = laps_ = 0;  // every arm gets the same
        fg::model::weights<fg::model::qwen35> out;
        const auto vector = [&](std::size_t n, float value) { return out.keep(std::vector<float>(n, value)); };
        const auto varied = [&](std::size_t n, unsigned seed, float deviation) { return out.keep(normal(n, seed, deviation)); };
        out.embedding = out.head = matrix(c.vocabulary, c.hidden);
        out.output.norm = vector(c.hidden, 0.1f);
        for (std::size_t i = 0; i < c.layers.size(); ++i) {
            fg::model::layer_weights<fg::model::qwen35>& w = out.layers.emplace_back();
            w.around_mixer.norm = vector(c.hidden, 0.05f);
            w.around_feed_forward.norm = vector(c.hidden, 0.05f);
            w.feed_forward = {matrix(c.intermediate, c.hidden), matrix(c.intermediate, c.hidden),
                              matrix(c.hidden, c.intermediate)};
            const std::size_t values = c.value_heads * c.value_dim, channels = 2 * c.key_heads * c.key_dim + values;
            if (c.layers[i] == fg::model::layer_kind::gdn) {
                auto& gdn = w.mixer.emplace<fg::attention::gdn_weights>();
                gdn.qkv = matrix(channels, c.hidden);
                gdn.z = matrix(values, c.hidden);
                gdn.alpha = matrix(c.value_heads, c.hidden);
                gdn.beta = matrix(c.value_heads, c.hidden);
                gdn.out = matrix(c.hidden, values);
                gdn.conv = varied(channels * c.conv_kernel, static_cast<unsigned>(i), 0.3f);
                gdn.a_neg_exp = vector(c.value_heads, -0.5f);
                gdn.dt_bias = vector(c.value_heads, 0.1f);
                gdn.norm = vector(c.value_dim, 1.0f);
            } else {
                auto& attention = w.mixer.emplace<fg::attention::full_weights>();
                attention.q = matrix(2 * c.heads * c.head_dim, c.hidden);
                attention.k = matrix(c.kv_heads * c.head_dim, c.hidden);
                attention.v = matrix(c.kv_heads * c.head_dim, c.hidden);
                attention.o = matrix(c.hidden, c.heads * c.head_dim);
                attention.q_norm = vector(c.head_dim, 0.1f);
                attention.k_norm = vector(c.head_dim, 0.1f);
            }
        }
        return out;
    }

private:
    static constexpr std::size_t pool_blocks = std::size_t{1} << 18;  // 38 MB: beyond the caches

    [[nodiscard]] fg::quant::weight_view matrix(std::size_t rows, std::size_t cols) {
        using format = fg::quant::q4_k;
        const std::size_t blocks = rows * cols / format::block_size;
        if (next_ + blocks > pool_blocks) next_ = ++laps_ * 7;
        const std::byte* data = pool_.data() + next_ * format::block_bytes;
        next_ += blocks;
        return {format::type, data, rows, cols, cols / format::block_size * format::block_bytes};
    }

    aligned_bytes pool_;
    std::size_t next_ = 0, laps_ = 0;
};

/// Totals over the warm tokens of an arm: those of a step for which every image was there.
struct measured {
    std::string_view arm;
    std::size_t warm = 0;
    double wall = 0, load = 0, device = 0;  // seconds
    double decision = 0;                    // seconds a layer, where all its images are there
    std::uint64_t attention_calls = 0, bytes = 0, packed = 0;
    std::vector<std::vector<float>> logits;
};

/// How long the beginning and end of a layer's two steps take, with nothing computed between them. The median of many sweeps
/// over all layers, clock readings of the counters included.
template <class Device, class Store>
fg::result<double> decision_seconds(Device& device, fg::workspace& scratch, Store& store,
                                    const fg::model::weights<fg::model::qwen35>& weights) {
    const fg::model::config sizes = qwen35_2b();
    std::vector<double> sweeps;
    for (int sweep = 0; sweep < 1001; ++sweep) {
        const auto start = clock_type::now();
        for (std::size_t i = 0; i < sizes.layers.size(); ++i) {
            const fg::model::layer_weights<fg::model::qwen35>& w = weights.layers[i];
            if (sizes.layers[i] == fg::model::layer_kind::gdn)
                FRUGAL_TRY(store.template begin<fg::attention::gdn_products>(device, scratch, i,
                                                                             w.mixer_as<fg::attention::gdn_weights>()));
            else
                FRUGAL_TRY(store.template begin<fg::attention::full_products>(device, scratch, i,
                                                                              w.mixer_as<fg::attention::full_weights>()));
            FRUGAL_TRY(store.template begin<fg::layer::dense_ffn_products>(device, scratch, i, w.feed_forward));
        }
        sweeps.push_back(std::chrono::duration<double>(clock_type::now() - start).count());
    }
    return median(std::move(sweeps)) / static_cast<double>(sizes.layers.size());
}

template <class Isa, class Loading>
fg::result<measured> run_arm(random_weights& pool) {
    using model_type = fg::model::transformer<fg::model::qwen35, fg::model::convention::hugging_face,
                                              fg::policies<waiting_device<Isa>, formats, Loading>>;
    const fg::model::config sizes = qwen35_2b();
    FRUGAL_TRY_ASSIGN(auto model, model_type::create(sizes, pool.make(sizes)));
    FRUGAL_TRY_ASSIGN(auto state, model.make_state({.sequences = 1, .max_tokens = tokens}));
    waiting_device<Isa> device(executor());
    FRUGAL_TRY_ASSIGN(auto pass, model.make_pass(device, {.on_failure = fg::reuse::on_device_failure::return_error}));
    measured out;
    out.arm = Loading::name;
    const fg::attention::sequence_id sequence{0};
    const fg::attention::segment one{sequence, 0, 1};
    const std::size_t row = 0;
    // Adds what has been counted so far, or takes it off again.
    const auto count = [&](int sign) {
        const auto read = [&](fg::counter which) { return static_cast<std::int64_t>(pass.store().counted(which)) * sign; };
        const auto add = [](std::uint64_t& to, std::int64_t n) { to += static_cast<std::uint64_t>(n); };
        out.load += static_cast<double>(read(fg::counter::load_nanoseconds)) * 1e-9;
        out.device += static_cast<double>(read(fg::counter::device_nanoseconds)) * 1e-9;
        add(out.bytes, read(fg::counter::dequantized_bytes));
        add(out.packed, read(fg::counter::images_packed));
        const auto& attention = pass.store().template of<fg::attention::full_products>().counters();
        add(out.attention_calls, static_cast<std::int64_t>(attention.read(fg::counter::dequantize_calls)) * sign);
    };
    for (std::size_t request = 0; request < requests; ++request) {
        state.clear(sequence);
        std::int32_t token = static_cast<std::int32_t>(100 + request);
        for (std::size_t t = 0; t < tokens; ++t) {
            const bool warm = request != 0 || t != 0;  // the first token packs
            if (warm) count(-1);
            std::vector<float> logits(sizes.vocabulary);
            const auto start = clock_type::now();
            FRUGAL_TRY(model.forward(pass, state, {{&token, 1}, {&one, 1}, {}, {&row, 1}}, {logits.data(), 1, logits.size()}));
            const double wall = std::chrono::duration<double>(clock_type::now() - start).count();
            std::size_t best = 0;
            for (std::size_t i = 0; i < logits.size(); ++i)
                if (logits[i] > logits[best]) best = i;
            token = static_cast<std::int32_t>(best);
            out.logits.push_back(std::move(logits));
            if (!warm) continue;
            count(1);
            ++out.warm;
            out.wall += wall;
        }
    }
    if constexpr (Loading::skips_resident) {
        FRUGAL_TRY_ASSIGN(out.decision, decision_seconds(device, pass.scratch(), pass.store(), pool.make(sizes)));
    }
    return out;
}

bool same(const measured& a, const measured& b) {
    for (std::size_t i = 0; i < a.logits.size(); ++i)
        if (std::memcmp(a.logits[i].data(), b.logits[i].data(), a.logits[i].size() * sizeof(float)) != 0) return false;
    return a.logits.size() == b.logits.size();
}

/// Whether logits are numbers, and differ from token to token: what a comparison of equals is worth.
bool meaningful(const measured& m) {
    for (const auto& logits : m.logits)
        for (const float value : logits)
            if (!std::isfinite(value)) return false;
    for (std::size_t i = 1; i < m.logits.size(); ++i)
        if (m.logits[i] == m.logits[i - 1]) return false;
    return true;
}

double per_token(double total, const measured& m) { return total / static_cast<double>(m.warm); }

void print(const std::vector<measured>& arms) {
    std::printf("%-14s %14s %14s %10s %10s %10s %10s %8s\n", "arm", "q,k,v,o loads", "bytes", "load ms", "device ms", "rest ms",
                "wall ms", "host");
    for (const measured& m : arms) {
        const double wall = per_token(m.wall, m), load = per_token(m.load, m), device = per_token(m.device, m);
        std::printf("%-14s %14.4g %14.6g %10.4g %10.4g %10.4g %10.4g %7.1f%%\n", std::string(m.arm).c_str(),
                    per_token(static_cast<double>(m.attention_calls), m), per_token(static_cast<double>(m.bytes), m), load * 1e3,
                    device * 1e3, (wall - load - device) * 1e3, wall * 1e3, 100 * (wall - device) / wall);
    }
    std::printf("each per warm token; the device waits %lld us for every product besides computing it\n",
                static_cast<long long>(device_wait.count()));
}

json as_json(const std::vector<measured>& arms) {
    json out{{"context", context(executor().concurrency())}, {"load_skip", json::array()}};
    for (const measured& m : arms) {
        const double wall = per_token(m.wall, m), load = per_token(m.load, m), device = per_token(m.device, m);
        out["load_skip"].push_back({{"arm", m.arm},
                                    {"load_ms", load * 1e3},
                                    {"device_ms", device * 1e3},
                                    {"rest_ms", (wall - load - device) * 1e3},
                                    {"bytes", per_token(static_cast<double>(m.bytes), m)}});
    }
    return out;
}

fg::status run(json& out) {
    random_weights pool;
    std::vector<measured> arms;
    FRUGAL_TRY(fg::device::dispatch<fg::isa::all>([&]<class Isa>(fg::type_tag<Isa>) -> fg::status {
        for (const char arm : {'A', 'B', 'B', 'A'}) {
            std::fprintf(stderr, "arm %c\n", arm);
            FRUGAL_TRY_ASSIGN(
                auto m, arm == 'A' ? run_arm<Isa, fg::reuse::reload_always>(pool) : run_arm<Isa, fg::reuse::skip_resident>(pool));
            arms.push_back(std::move(m));
        }
        return {};
    }));
    print(arms);
    bool identical = true;
    for (std::size_t i = 1; i < arms.size(); ++i) identical = identical && same(arms[0], arms[i]);
    if (!meaningful(arms[0])) return fg::fail(fg::errc::not_finite, "the logits of this random model compare nothing");
    for (const measured& m : arms)
        if (m.packed != 0) return fg::fail(fg::errc::invalid_argument, "images were packed for warm tokens");
    out = as_json(arms);

    const auto figure = [](const char* name, double value) { std::printf("figure load_skip.%s %.6g\n", name, value); };
    const auto both = [&](std::size_t first, std::size_t second, auto member) {
        return (per_token(static_cast<double>(arms[first].*member), arms[first]) +
                per_token(static_cast<double>(arms[second].*member), arms[second])) /
               2;
    };
    const double reload = both(0, 3, &measured::load), skip = both(1, 2, &measured::load);
    figure("dequant_calls_reload", both(0, 3, &measured::attention_calls));
    figure("dequant_calls_skip", both(1, 2, &measured::attention_calls));
    figure("bytes_reload", both(0, 3, &measured::bytes));
    figure("bytes_skip", both(1, 2, &measured::bytes));
    figure("load_ms_reload", reload * 1e3);
    figure("load_ms_skip", skip * 1e3);
    figure("load_ms_ratio", reload / skip);
    figure("wall_ratio", both(0, 3, &measured::wall) / both(1, 2, &measured::wall));
    figure("logits_identical", identical ? 1 : 0);
    figure("decision_us", (arms[1].decision + arms[2].decision) / 2 * 1e6);
    return identical ? fg::status{} : fg::status(fg::fail(fg::errc::invalid_argument, "the arms' logits differ"));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("load_skip", argc, argv, bench::run); }

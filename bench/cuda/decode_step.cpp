// A whole decoded token of a model on the GPU: Qwen3.5-2B, and a quarter of Qwen3.8-Flash-Next's layers with an eighth of the
// experts, with random weights of the types of a Q4_K_M file; behind few tokens and behind many, which a prefill has made.
#include "decode_step.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../model/generator.hpp"
#include "frugal/device/cuda/cuda.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/model/cuda_decoder.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "opened.hpp"

namespace device = frugal::device;
namespace model = frugal::model;
namespace quant = frugal::quant;

namespace {

/// What this program's kernels are compiled for.
struct built_arch {
    static constexpr std::string_view name = "this program's architecture";
    static constexpr int major = FRUGAL_BENCH_CUDA_ARCHITECTURE / 10, minor = FRUGAL_BENCH_CUDA_ARCHITECTURE % 10;
};
using formats = quant::list<quant::f32, quant::f16, quant::bf16, quant::q4_k, quant::q6_k, quant::q5_0, quant::q8_0>;
using gpu = device::cuda<built_arch, device::cpu<frugal::isa::baseline, frugal::counters_off>, device::q8_activations, formats,
                         device::prefill::bf16_tiles>;
using precision = frugal::ops::cache_precision<frugal::bfloat16, frugal::bfloat16>;
constexpr double scalar_bytes = sizeof(frugal::bfloat16);

constexpr std::size_t checked = 6, piece = 1024;
constexpr double most_seconds = 60;  ///< of making one depth

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Ends the program with the error's sentence.
template <class T>
T must(frugal::result<T> outcome) {
    if (!outcome) bench::must(frugal::status(std::move(outcome).error()));
    return *std::move(outcome);
}

/// Bytes of a model's weights that a decoded token reads: of experts the chosen ones, of tables of rows none.
template <class Spec>
double weight_bytes(const model::config& sizes, const model::weights<Spec>& all) {
    using parts = model::parts_of<Spec>;
    double sum = 0;
    const auto add = [&](const quant::weight_view& w, double part = 1) { sum += part * static_cast<double>(w.bytes()); };
    const auto add_list = [&]<class List>(frugal::type_tag<List>, std::size_t, const auto& w) -> frugal::status {
        List::for_each([&]<class Product>(frugal::type_tag<Product>) { sum += static_cast<double>(Product::source_bytes(w)); });
        return {};
    };
    for (const model::layer_weights<Spec>& w : all.layers) {
        std::visit(
            [&]<class W>(const W& mixer) {
                if constexpr (std::is_same_v<W, frugal::attention::gdn_weights>)
                    (void)add_list(frugal::type_tag<frugal::attention::gdn_products>{}, 0, mixer);
                else if constexpr (std::is_same_v<W, frugal::attention::qsa_weights>)
                    (void)add_list(frugal::type_tag<frugal::attention::qsa_products>{}, 0, mixer);
                else
                    (void)add_list(frugal::type_tag<frugal::attention::full_products>{}, 0, mixer);
            },
            w.mixer);
        (void)parts::feed_forward::for_each_list(0, w.feed_forward, add_list);
        if constexpr (std::is_same_v<typename parts::feed_forward, frugal::layer::mixture_of_experts>)
            for (const auto* each : {&w.feed_forward.gate, &w.feed_forward.up, &w.feed_forward.down})
                add(each->first, static_cast<double>(sizes.experts_used));
        (void)parts::residual::for_each_list(0, w.around_mixer, add_list);
        (void)parts::residual::for_each_list(0, w.around_feed_forward, add_list);
    }
    if constexpr (parts::has_modules)
        for (const auto& w : all.modules) (void)add_list(frugal::type_tag<frugal::layer::ngram_products>{}, 0, w);
    (void)parts::residual::for_each_list(0, all.output, add_list);
    add(all.head);
    return sum;
}

template <class Spec>
constexpr std::size_t measured_ratio = 0;
template <std::size_t Ratio>
constexpr std::size_t measured_ratio<model::qwen4exp<Ratio>> = Ratio;

/// Bytes of states and caches that a token behind `depth` others reads and writes.
template <class Spec>
double state_bytes(const model::config& sizes, std::size_t depth) {
    double sum = 0;
    for (const model::layer_kind kind : sizes.layers) {
        if (kind == model::layer_kind::gdn) {
            sum += 2.0 * static_cast<double>(sizes.value_heads * sizes.key_dim * sizes.value_dim) * sizeof(float);
            continue;
        }
        std::size_t tokens = depth;
        constexpr std::size_t ratio = measured_ratio<Spec>;
        if constexpr (ratio != 0) {
            sum += static_cast<double>(depth / ratio * sizes.index_dim) * scalar_bytes;
            tokens = std::min(depth, sizes.index_budget + ratio - 1);
        }
        sum += 2.0 * static_cast<double>(tokens * sizes.kv_heads * sizes.head_dim) * scalar_bytes;
    }
    return sum;
}

template <class Spec>
class measurement {
public:
    using decoder = model::cuda_decoder<Spec, model::convention::gguf, frugal::policies<gpu, formats, precision>>;

    measurement(bench::report& to, const bench::model_shape& shape, const std::string& path, std::size_t most)
        : to_(to), name_(shape.name), device_(must(gpu::open(0))), decoder_(create(path, most)) {
        std::mt19937 random(1);
        for (std::size_t i = 0; i < most; ++i) tokens_.push_back(static_cast<std::int32_t>(random() % (sizes_.vocabulary - 1)));
    }

    void run(std::span<const std::size_t> depths) {
        const bool right = is_right();
        for (const std::size_t depth : depths) {
            const std::size_t reached = deepen(depth);
            to_.add("decode_step/q4_k_m/behind_" + std::to_string(reached) + "/" + name_, right,
                    {weight_bytes_ + state_bytes<Spec>(sizes_, reached)}, [&](int i) {
                        const std::int32_t token = tokens_[static_cast<std::size_t>(i) % tokens_.size()];
                        (void)must(decoder_.step_greedy(device_, {&token, 1}));
                    });
        }
    }

private:
    [[nodiscard]] decoder create(const std::string& path, std::size_t most) {
        const auto file = must(frugal::io::gguf_file::open(path));
        (void)::unlink(path.c_str());
        sizes_ = must(model::read_config(file));
        const auto weights = must(model::read_weights<Spec, formats>(file, sizes_));
        weight_bytes_ = weight_bytes<Spec>(sizes_, weights);
        return must(decoder::create(device_, sizes_, weights,
                                    {.max_tokens = most, .batch_tokens = std::min(piece, most), .logit_rows = checked}));
    }

    /// Whether recorded steps of single tokens give the bits of a step that is not recorded, and the likeliest tokens.
    [[nodiscard]] bool is_right() {
        const std::size_t width = sizes_.vocabulary;
        std::vector<float> one(checked * width), all(checked * width);
        const auto tokens = std::span<const std::int32_t>(tokens_).first(checked);
        for (std::size_t t = 0; t < checked; ++t)
            bench::must(decoder_.step(device_, tokens.subspan(t, 1), {one.data() + t * width, 1, width}));
        bench::must(decoder_.clear(device_));
        bench::must(decoder_.step(device_, tokens, {all.data(), checked, width}));
        bool right = std::memcmp(one.data(), all.data(), one.size() * sizeof(float)) == 0;
        bench::must(decoder_.clear(device_));
        for (std::size_t t = 0; t < checked; ++t) {
            const float* const row = one.data() + t * width;
            right =
                must(decoder_.step_greedy(device_, tokens.subspan(t, 1))) == std::max_element(row, row + width) - row && right;
        }
        // Different tokens have had different logits, and these are numbers.
        return right && std::memcmp(one.data(), one.data() + width, width * sizeof(float)) != 0 &&
               std::all_of(one.begin(), one.end(), [](float x) { return x - x == 0.0f; });
    }

    /// Makes the sequence one of so many tokens, or of as many as there is time for.
    [[nodiscard]] std::size_t deepen(std::size_t depth) {
        bench::must(decoder_.clear(device_));
        const double until = seconds() + most_seconds;
        while (decoder_.length() < depth) {
            if (seconds() > until) {
                std::printf("%s: time was for %zu of %zu tokens\n", name_.c_str(), decoder_.length(), depth);
                break;
            }
            const std::size_t count = std::min(piece, depth - decoder_.length());
            bench::must(decoder_.step(device_, std::span<const std::int32_t>(tokens_).subspan(decoder_.length(), count), {}));
        }
        return decoder_.length();
    }

    bench::report& to_;
    std::string name_;
    model::config sizes_;
    double weight_bytes_ = 0;
    std::vector<std::int32_t> tokens_;
    gpu device_;
    decoder decoder_;
};

}  // namespace

void bench::decode_step(report& to, const model_shape& shape, std::span<const std::size_t> depths) {
    constexpr std::size_t measured = 8192;  // tokens, at most, that the rounds of one depth append
    const char* const folder = std::getenv("TMPDIR");
    const std::string path = std::string(folder == nullptr ? "/tmp" : folder) + "/frugal_" + std::string(shape.name) + "_" +
                             std::to_string(::getpid()) + ".gguf";
    must(write_model(shape, path));
    const std::size_t most = *std::max_element(depths.begin(), depths.end()) + measured;
    if (shape.architecture == frugal::model::qwen35::name)
        measurement<frugal::model::qwen35>(to, shape, path, most).run(depths);
    else
        measurement<frugal::model::qwen4exp<>>(to, shape, path, most).run(depths);
}

void bench::decode_steps(report& to) {
    constexpr std::size_t depths[] = {0, 32768};
    for (const model_shape& shape : model_shapes) decode_step(to, shape, depths);
}

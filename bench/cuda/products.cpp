// Products of every format: one token, where reading weights is all, a few, and a prefill of 512.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frugal/device/cuda/prefill.hpp"
#include "frugal/device/cuda/products.hpp"
#include "frugal/quant/codec.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/panels.hpp"
#include "gpu.hpp"
#include "opened.hpp"
#if FRUGAL_BENCH_CUBLAS
#include "frugal/device/cuda/cublas.hpp"
#endif

namespace device = frugal::device;
namespace quant = frugal::quant;
using bench::array;
using frugal::type_tag;

namespace {

constexpr std::size_t distinct = 97;  ///< rows of weights that differ: no multiple of a panel's
constexpr std::size_t most = 512;     ///< tokens

/// Rows of blocks with finite scales, encoded numbers where there is an encoder, random bits elsewhere; again and again.
template <class Format>
std::vector<std::byte> random_weights(std::size_t rows, std::size_t cols) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    const std::size_t row = cols / Format::block_size * Format::block_bytes;
    std::vector<std::byte> out(rows * row);
    for (std::size_t at = 0; at < std::min(rows, distinct) * row; at += Format::block_bytes) {
        if constexpr (quant::encodable_format<Format>) {
            float values[Format::block_size];
            for (float& value : values) value = normal(random);
            Format::encode(values, out.data() + at);
        } else {
            do {
                for (std::size_t i = 0; i < Format::block_bytes; ++i) out[at + i] = static_cast<std::byte>(random() & 0xFFu);
            } while (!Format::finite(out.data() + at));
        }
    }
    for (std::size_t r = distinct; r < rows; ++r) std::copy_n(out.begin() + (r - distinct) * row, row, out.begin() + r * row);
    return out;
}

template <class Format>
class problem {
public:
    problem(bench::report& to, std::size_t rows, std::size_t cols)
        : to_(to),
          rows_(rows),
          cols_(cols),
          bytes_(random_weights<Format>(rows, cols)),
          view_{Format::type, bytes_.data(), rows, cols, cols / Format::block_size * Format::block_bytes},
          x_(bench::normals(most * cols, 2)),
          values_(x_),
          scales_(most * cols / 32),
          y_(most * rows),
          codes_(most * cols),
          sums_(most * cols / 16) {
        const auto packed = quant::panel_weights::pack<quant::list<Format>>(std::span(&view_, 1));
        if (!packed) std::exit(1);
        const quant::panel_view part = packed->parts()[0];
        panel_bytes_ = part.panel_bytes;
        image_bytes_ = static_cast<double>(part.bytes());
        const auto* const from = part.data;
        const std::vector<std::byte> image(from, from + part.bytes());
        for (std::size_t i = 0; i < to.copies(image_bytes_); ++i) images_.emplace_back(image);
        bench::must(device::gpu::quantize_activations<device::q8_activations>(values_.data(), most, cols / 32, codes_.data(),
                                                                              sums_.data(), scales_.data(), to.queue),
                    "round activations");
        for (std::size_t r = 0; r < std::min(rows, distinct); ++r) {
            decoded_.emplace_back(cols);
            quant::decode_row<Format>(view_.row(r), cols, decoded_.back().data());
        }
    }

    /// The product with so many tokens: `start(product)` starts it; `form` names how.
    void measure(const char* form, std::size_t tokens, double tolerance, bool beside_cublas,
                 const std::function<void(const device::gpu::panel_product&)>& start) {
        const auto run = [&](int i) { start(product(static_cast<std::size_t>(i) % images_.size(), tokens)); };
        run(0);
        const std::string name = std::string("matmul/") + std::string(Format::name) + "/" + form + "/" + std::to_string(rows_) +
                                 "x" + std::to_string(cols_) + "x" + std::to_string(tokens);
        to_.add(name, right(tokens, tolerance),
                {tokens == 1 ? image_bytes_ : 0.0, 2.0 * static_cast<double>(rows_ * cols_ * tokens), beside_cublas}, run);
    }
    template <class Activations>
    void measure(const char* form, std::size_t tokens, double tolerance) {
        measure(form, tokens, tolerance, tokens > 16, [&](const device::gpu::panel_product& p) {
            bench::must(device::gpu::multiply_panels<Format, Activations>(p, to_.queue), "start a product");
        });
    }
    template <class Prefill>
    void prefill(const char* form) {
        typename Prefill::multiplier by;
        measure(form, most, 1e-2, true, [&](const device::gpu::panel_product& p) {
            bench::must(by.template multiply<Format>(to_.host->on, to_.host->queue, p));
        });
    }

private:
    [[nodiscard]] device::gpu::panel_product product(std::size_t image, std::size_t tokens) const {
        device::gpu::panel_product out;
        out.weights = images_[image].data();
        out.rows = rows_;
        out.panel_bytes = panel_bytes_;
        out.x = {values_.data(), codes_.data(), sums_.data(), scales_.data(), tokens, cols_ / 32};
        out.y = y_.data();
        out.y_stride = rows_;
        out.multiprocessors = to_.device.multiProcessorCount;
        return out;
    }
    /// Every row of the first token and of the last of so many, against sums in double.
    [[nodiscard]] bool right(std::size_t tokens, double tolerance) const {
        const auto all = y_.to_host();
        std::vector<float> got;
        std::vector<double> want;
        for (const std::size_t t : {std::size_t{0}, tokens - 1}) {
            std::vector<double> sums(decoded_.size());
            for (std::size_t r = 0; r < decoded_.size(); ++r)
                for (std::size_t c = 0; c < cols_; ++c)
                    sums[r] += static_cast<double>(decoded_[r][c]) * static_cast<double>(x_[t * cols_ + c]);
            for (std::size_t r = 0; r < rows_; ++r) {
                want.push_back(sums[r % distinct]);
                got.push_back(all[t * rows_ + r]);
            }
        }
        return bench::relative(got, want) < tolerance;
    }

    bench::report& to_;
    std::size_t rows_, cols_, panel_bytes_ = 0;
    double image_bytes_ = 0;
    std::vector<std::byte> bytes_;
    quant::weight_view view_;
    std::vector<float> x_;
    array<float> values_, scales_, y_;
    array<std::int8_t> codes_;
    array<std::int16_t> sums_;
    std::vector<array<std::byte>> images_;
    std::vector<std::vector<float>> decoded_;
};

template <class Format>
void one(bench::report& to, std::size_t rows, std::size_t cols, bool long_prefills) {
    problem<Format> p(to, rows, cols);
    p.template measure<device::f32_activations>("f32", 1, 1e-5);
    if constexpr (quant::coded_layout<quant::panel_of<Format>>) {
        p.template measure<device::q8_activations>("q8", 1, 2e-2);
        p.template measure<device::q8_activations>("q8", 8, 2e-2);
        p.template measure<device::q8_activations>("q8", most, 2e-2);
    }
    p.template prefill<device::prefill::bf16_tiles>("bf16_tiles");
    if (!long_prefills) return;
    p.template measure<device::f32_activations>("f32", most, 1e-5);
#if FRUGAL_BENCH_CUBLAS
    p.template prefill<device::prefill::cublas>("cublas");
    if constexpr (std::is_same_v<Format, quant::bf16>) {  // what the library does with weights that lie as it wants them
        std::vector<array<frugal::bfloat16>> weights;
        std::vector<frugal::bfloat16> numbers(rows * cols);
        const auto random = bench::normals(distinct * cols, 3, 0.05f);
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = frugal::to_bfloat16(random[i % random.size()]);
        for (std::size_t i = 0; i < to.copies(2.0 * static_cast<double>(rows * cols)); ++i) weights.emplace_back(numbers);
        const array<frugal::bfloat16> x(std::vector(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(most * cols)));
        const array<float> y(most * rows);
        device::gpu::cublas_products by;
        for (const std::size_t tokens : {std::size_t{1}, most}) {
            const auto run = [&](int i) {
                bench::must(by.multiply(to.host->on, to.host->queue, weights[static_cast<std::size_t>(i) % weights.size()].data(),
                                        rows, cols, x.data(), tokens, y.data(), rows));
            };
            run(0);
            const auto all = y.to_host();
            std::vector<double> want;
            for (std::size_t r = 0; r < rows; ++r) {
                double sum = 0;
                for (std::size_t c = 0; c < cols; ++c)
                    sum += static_cast<double>(frugal::to_float(numbers[r * cols + c])) *
                           static_cast<double>(frugal::to_float(numbers[(tokens - 1) * cols + c]));
                want.push_back(sum);
            }
            const std::vector<float> got(all.begin() + static_cast<std::ptrdiff_t>((tokens - 1) * rows),
                                         all.begin() + static_cast<std::ptrdiff_t>(tokens * rows));
            to.add("matmul/bf16/cublas_alone/" + std::to_string(rows) + "x" + std::to_string(cols) + "x" + std::to_string(tokens),
                   bench::relative(got, want) < 1e-4,
                   {tokens == 1 ? 2.0 * static_cast<double>(rows * cols) : 0.0, 2.0 * static_cast<double>(rows * cols * tokens),
                    true},
                   run);
        }
    }
#endif
}

}  // namespace

void bench::products(report& to) {
    const auto formats = [&]<class... Format>(quant::list<Format...>) { (one<Format>(to, 4096, 4096, false), ...); };
    formats(quant::all{});
    one<quant::q4_k>(to, 12288, 4096, true);
    one<quant::bf16>(to, 12288, 4096, true);
}

// Products of a weight image with one token (decode: weights stream from memory) and with a batch (prefill), with activations
// as they are and in 8 bits.
#include "bench.hpp"
#include "frugal/device/cpu/packed_cpu.hpp"
#include "frugal/ops/matmul/image_matmul.hpp"

namespace bench {

namespace {

constexpr std::size_t rows = 4096, cols = 4096;

template <class Isa, class Format, class Activations>
struct product {
    explicit product(std::size_t tokens)
        : copies(tokens == 1 ? copies_beyond_cache(rows * cols / Format::block_size * Format::block_bytes) : 1),
          w(rows, cols, copies, 1),
          x(normal(tokens * cols, 2)),
          y(tokens * rows) {
        for (std::size_t i = 0; i < copies; ++i) {
            const fg::quant::weight_view view = w.view(i);
            images.push_back(std::move(device.pack({&view, 1}).value()));
        }
    }

    fg::status run() {
        const std::size_t tokens = x.size() / cols;
        const auto out = as_matrix(y, tokens);
        return fg::ops::image_matmul(device, scratch, images[turn++ % copies], as_matrix(std::as_const(x), tokens), {&out, 1});
    }

    std::string check() const {
        std::vector<float> got;
        std::vector<double> want;
        for (std::size_t t = 0; t < x.size() / cols; t += 5)
            for (std::size_t r = 0; r < rows; r += 97) {
                got.push_back(y[t * rows + r]);
                want.push_back(w.dot(r, x.data() + t * cols));
            }
        // Activations of 8 bits are off by up to 1/254 of a block's largest each.
        return compare(got, want, Activations::quantized ? 0.05 : 1e-4);
    }

    work cost() const {
        return {static_cast<double>(w.view().bytes()) + float_bytes(x.size() + y.size()),
                2.0 * static_cast<double>(x.size() * rows)};
    }

    std::size_t copies, turn = 0;
    weights<Format> w;
    std::vector<float> x, y;
    using device_type = fg::device::packed_cpu<Isa, fg::counters_off, fg::quant::list<Format>, Activations>;
    device_type device{executor()};
    std::vector<typename device_type::image> images;
    fg::workspace scratch;
};

/// Batches of few formats: those products differ little in speed, and take long.
template <class Format>
constexpr bool in_batches = fg::quant::list<fg::quant::f32, fg::quant::bf16, fg::quant::q8_0, fg::quant::q4_k>::contains<Format>;

template <class Format>
void add_format() {
    for_each_isa([]<class Isa>(fg::type_tag<Isa>) {
        for (std::size_t tokens : {std::size_t{1}, std::size_t{32}}) {
            if (tokens > 1 && !in_batches<Format>) continue;
            const std::string shape = fg::concat(rows, 'x', cols, 'x', tokens);
            add_case<product<Isa, Format, fg::device::f32_activations>>(name("matmul", Format::name, Isa::name, shape), Isa::name,
                                                                        tokens);
            if constexpr (fg::quant::coded_layout<fg::quant::panel_of<Format>>)
                add_case<product<Isa, Format, fg::device::q8_activations>>(name("matmul_q8", Format::name, Isa::name, shape),
                                                                           Isa::name, tokens);
        }
    });
}

}  // namespace

void register_benchmarks() {
#define FRUGAL_ADD_FORMAT(format) add_format<fg::quant::format>();
    FRUGAL_FORMATS(FRUGAL_ADD_FORMAT)
#undef FRUGAL_ADD_FORMAT
}

}  // namespace bench

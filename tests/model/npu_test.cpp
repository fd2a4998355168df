// Whole models whose products run on an emulated NPU behind the real XRT: the same logits with and without load-skip, close to the
// host's, and right where the device fails.
#include "frugal/ops/matmul/matmul.hpp"
#include "model_support.hpp"
#include "sanitizer.hpp"
#include "xrt_device.hpp"

using namespace frugal;
using namespace test;

namespace {

using npu = device::xrt<counting_cpu<isa::baseline>>;
using host = counting_cpu<isa::baseline>;

template <class Spec, class... Option>
auto run_on_npu(const gguf_model& file, const emulated_machine& machine, model::weight_store_options images = {}) {
    return file.run_on<Spec, npu, Option...>({.sequences = 1, .max_tokens = 64}, images, machine.open<npu>());
}

const gguf_model& tiny(const char* name) {
    static const gguf_model qwen35(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen35-Q4_K_M.gguf"));
    static const gguf_model qwen4exp(std::string(FRUGAL_EXAMPLE_MODELS "/tiny-qwen4exp-Q4_K_M.gguf"));
    return std::string_view(name) == "tiny-qwen35" ? qwen35 : qwen4exp;
}

const std::vector<std::int32_t> tokens = {5, 17, 300, 4, 99, 1023, 8, 2, 77, 431};

/// Two requests of a prompt and a few tokens one by one.
template <class Running>
std::vector<float> two_requests(Running& m) {
    std::vector<float> out;
    for (int request = 0; request < 2; ++request) {
        m.state.clear(sequence_id{0});
        const auto logits = m.run_pieces(tokens, {tokens.size() / 2, 1});
        out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
}

/// What the NPU computes, on the host: weights as the tiles hold them, activations rounded to bfloat16, sums in f32.
class tiles_on_host : public host {
public:
    using host::host;
    using source = matrix_view<const float>;
    using tiles = quant::packed_tiles<npu::tile_format>;
    struct image {
        std::vector<float> weights;
        std::vector<std::size_t> rows;
        std::size_t cols = 0;
        [[nodiscard]] std::size_t bytes() const { return weights.size() * sizeof(float); }
    };
    [[nodiscard]] result<image> pack(std::span<const source> parts) {
        image out;
        std::size_t all = 0;
        for (const source& part : parts) {
            out.rows.push_back(part.rows());
            all += part.rows();
        }
        out.cols = parts.front().cols();
        std::vector<std::byte> packed(tiles::bytes(all, out.cols));
        FRUGAL_TRY(quant::pack_tiles<npu::tile_format>(parts, packed));
        out.weights.resize(all * out.cols);
        FRUGAL_TRY(
            quant::unpack_tiles<npu::tile_format>(packed, all, out.cols, matrix_view<float>(out.weights.data(), all, out.cols)));
        return out;
    }
    [[nodiscard]] status multiply(workspace& scratch, const image& w, matrix_view<const float> x,
                                  std::span<const matrix_view<float>> y) {
        std::vector<float> rounded(x.rows() * x.cols());
        for (std::size_t t = 0; t < x.rows(); ++t)
            for (std::size_t c = 0; c < x.cols(); ++c) rounded[t * x.cols() + c] = to_float(to_bfloat16(x(t, c)));
        const float* from = w.weights.data();
        for (std::size_t i = 0; i < y.size(); from += w.rows[i++] * w.cols)
            FRUGAL_TRY(ops::matmul<quant::list<quant::f32>>(
                *this, scratch,
                {quant::f32::type, reinterpret_cast<const std::byte*>(from), w.rows[i], w.cols, w.cols * sizeof(float)},
                matrix_view<const float>(rounded.data(), x.rows(), x.cols()), y[i]));
        return {};
    }
    [[nodiscard]] std::uint64_t generation() const { return 0; }
};

/// Root of the mean square difference, relative to that of the wanted.
double relative(std::span<const float> got, std::span<const float> want) {
    double difference = 0, square = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
        difference += d * d;
        square += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    }
    return std::sqrt(difference / square);
}

template <class Spec>
void check_arms(const char* name) {
    CAPTURE(name);
    const gguf_model& file = tiny(name);
    const auto exact = file.run<Spec, isa::baseline>({.sequences = 1, .max_tokens = 64});
    const auto want = two_requests(*exact);

    std::vector<float> skipped;
    {
        const emulated_machine machine;
        auto skip = run_on_npu<Spec>(file, machine);
        skipped = two_requests(*skip);
        CHECK(skip->store.counted(counter::host_fallbacks) == 0);
        CHECK(skip->store.counted(counter::loads_skipped) > 0);
        // Warm: the device gets activations and nothing else.
        const std::uint64_t bytes = skip->store.counted(counter::dequantized_bytes),
                            images = skip->store.counted(counter::images_packed);
        skip->state.clear(sequence_id{0});
        skip->run_pieces(tokens, {tokens.size() / 2, 1});
        CHECK(skip->store.counted(counter::dequantized_bytes) == bytes);
        CHECK(skip->store.counted(counter::images_packed) == images);
    }
    {
        const emulated_machine machine;
        auto reload = run_on_npu<Spec, reuse::reload_always>(file, machine);
        CHECK(same_bits(two_requests(*reload), skipped));
        CHECK(reload->store.counted(counter::loads_skipped) == 0);
    }
    // Beside the same numbers on the host only the order of the additions differs, which may turn the rounding of an activation.
    auto same_numbers = file.run_on<Spec, tiles_on_host>({.sequences = 1, .max_tokens = 64}, {});
    const double computed = relative(skipped, two_requests(*same_numbers));
    // Beside the exact model: 4-bit codes with 32 weights to a scale for what had 4 to 6 bits.
    const double rounded = relative(skipped, want);
    MESSAGE(std::string(name) << ": logits off by " << computed << " from the tiles on the host, by " << rounded
                              << " from the file's weights");
    CHECK(computed < 3e-3);
    CHECK(rounded < 0.15);
}

}  // namespace

TEST_CASE("NPU: tiny-qwen35, with and without load-skip, byte for byte") { check_arms<model::qwen35>("tiny-qwen35"); }
TEST_CASE("NPU: tiny-qwen4exp, with and without load-skip, byte for byte") { check_arms<model::qwen4exp<>>("tiny-qwen4exp"); }

TEST_CASE("C58 a device that refuses its n-th allocation: the host computes those products, and nothing leaks") {
    const gguf_model& file = tiny("tiny-qwen35");
    const auto exact = file.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64});
    const auto want = two_requests(*exact);
    for (const unsigned n : {0u, 1u, 2u, 9u, 30u}) {
        CAPTURE(n);
        const emulated_machine machine;
        {
            auto m = run_on_npu<model::qwen35>(file, machine);
            xrt_emulator::inject({.at = xrt_emulator::operation::allocate, .after = n, .times = 0});
            const auto got = two_requests(*m);
            CHECK(m->store.counted(counter::host_fallbacks) > 0);
            CHECK(relative(got, want) < 0.15);
            if (n == 0) CHECK(same_bits(got, want));  // nothing was on the device: the host's own result
        }
        CHECK(xrt_emulator::counters().live_bytes == 0);
    }
}

TEST_CASE("C58 a small device holds what fits; the rest is the host's, and the whole is right") {
    const gguf_model& file = tiny("tiny-qwen4exp");
    const auto exact = file.run<model::qwen4exp<>, isa::baseline>({.sequences = 1, .max_tokens = 64});
    const auto want = two_requests(*exact);
    for (const std::uint64_t kibibytes : {64u, 700u, 3000u}) {
        CAPTURE(kibibytes);
        const emulated_machine machine;
        xrt_emulator::configure({.memory_bytes = kibibytes << 10});
        auto m = run_on_npu<model::qwen4exp<>>(file, machine);
        CHECK(relative(two_requests(*m), want) < 0.15);
        CHECK(m->store.counted(counter::host_fallbacks) > 0);
        CHECK(m->store.bytes() <= kibibytes << 10);
    }
}

TEST_CASE("a device program that serves some shapes only: the others are the host's") {
    const gguf_model& file = tiny("tiny-qwen35");
    const emulated_machine machine;
    auto options = machine.options();
    const auto all = options.instructions;
    const std::size_t hidden = file.sizes.hidden;
    // Shapes with as many rows as the hidden size has: down, out and o.
    options.instructions = [&, all](std::size_t rows, std::size_t columns) {
        return rows == hidden ? all(rows, columns) : std::vector<std::uint32_t>();
    };
    auto m = file.run_on<model::qwen35, npu>({.sequences = 1, .max_tokens = 64}, {}, must(npu::open(0, options)));
    const auto got = two_requests(*m);
    const auto exact = file.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64});
    CHECK(relative(got, two_requests(*exact)) < 0.15);
    CHECK(m->store.counted(counter::image_products) > 0);
    CHECK(m->store.counted(counter::host_fallbacks) > 0);
    CHECK(m->store.last_failure()->code == errc::unsupported);
}

TEST_CASE("a command that fails or times out: the host repeats that product, the pass goes on") {
    const gguf_model& file = tiny("tiny-qwen35");
    const auto exact = file.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64});
    const auto want = two_requests(*exact);
    for (const unsigned n : {5u, 0u, 40u, 100u}) {
        if (test::under_sanitizer && n != 5) continue;  // each takes long there
        CAPTURE(n);
        const emulated_machine machine;
        auto m = run_on_npu<model::qwen35>(file, machine);
        xrt_emulator::inject({.at = xrt_emulator::operation::execute, .after = n, .times = 1});
        CHECK(relative(two_requests(*m), want) < 0.15);
        CHECK(m->store.counted(counter::host_fallbacks) == 1);
        REQUIRE(m->store.last_failure());
        m->store.retry();
        two_requests(*m);
        CHECK(m->store.counted(counter::host_fallbacks) == 1);
    }
}

TEST_CASE("A13 a device that is lost in the middle: the host goes on; reopened, it packs everything anew") {
    const gguf_model& file = tiny("tiny-qwen35");
    const auto exact = file.run<model::qwen35, isa::baseline>({.sequences = 1, .max_tokens = 64});
    const auto want = two_requests(*exact);
    const emulated_machine machine;
    auto m = run_on_npu<model::qwen35>(file, machine);
    const auto before = two_requests(*m);
    const std::uint64_t images = m->store.counted(counter::images_packed);
    xrt_emulator::lose_devices();
    const auto without = two_requests(*m);
    CHECK(m->device.lost());
    CHECK(same_bits(without, want));
    CHECK(m->store.counted(counter::images_packed) == images);
    CHECK(m->store.bytes() == 0);
    must(m->device.reopen());
    CHECK(same_bits(two_requests(*m), before));
    CHECK(m->store.counted(counter::images_packed) == 2 * images);
    // The same ahead of any pass.
    m->store.weights_changed();
    must(m->model.pack(m->pass));
    CHECK(m->store.counted(counter::images_packed) == 3 * images);
    CHECK(same_bits(two_requests(*m), before));
    CHECK(m->store.counted(counter::images_packed) == 3 * images);
}

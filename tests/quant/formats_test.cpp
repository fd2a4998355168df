// Every format of the library against the golden vectors: decoding bit for bit, over all codes and scale bytes.
#include "frugal/quant/formats.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "golden.hpp"

namespace quant = frugal::quant;

namespace {

template <class F>
std::vector<float> decode(std::span<const std::uint8_t> raw) {
    std::vector<float> out(raw.size() / F::block_bytes * F::block_size);
    for (std::size_t b = 0; b * F::block_bytes < raw.size(); ++b)
        F::decode(reinterpret_cast<const std::byte*>(raw.data()) + b * F::block_bytes, out.data() + b * F::block_size);
    return out;
}

/// Equal bits; any NaN equals any NaN.
void check_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
    REQUIRE(got.size() == want.size());
    std::size_t bad = 0, where = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(got[i]) && std::isnan(want[i])) continue;
        if (std::bit_cast<std::uint32_t>(got[i]) != std::bit_cast<std::uint32_t>(want[i])) ++bad, where = i;
    }
    CHECK_MESSAGE(bad == 0, what, ": ", bad, " of ", got.size(), " differ; last at ", where, ": got ", got[where], ", want ",
                  want[where]);
}

template <class F>
void check_format() {
    const std::string name(F::name);
    CAPTURE(name);
    const test::golden file("gguf/" + name);
    CHECK(static_cast<std::uint32_t>(F::type) == file.params().at("ggml_type").get<std::uint32_t>());
    CHECK(F::block_size == file.params().at("block_elements").get<std::size_t>());
    CHECK(F::block_bytes == file.params().at("block_bytes").get<std::size_t>());
    check_bits(decode<F>(file.get<std::uint8_t>("raw")), file.f32("deq"), name + " rows");
    if (file.has("bits_raw"))
        check_bits(decode<F>(file.get<std::uint8_t>("bits_raw")), file.f32("bits_deq"), name + " random blocks");
    if (file.has("sweep_raw")) {
        check_bits(decode<F>(file.get<std::uint8_t>("sweep_raw")), file.f32("sweep_deq_libggml"), name + " scale sweep");
        check_bits(decode<F>(file.get<std::uint8_t>("sweep_raw")), file.f32("sweep_deq_gguf_py"), name + " scale sweep, gguf-py");
    }
    if (file.has("all_codes_f32")) {
        std::vector<std::uint8_t> codes(2 * 65536);
        for (std::size_t i = 0; i < 65536; ++i) {
            const auto code = static_cast<std::uint16_t>(i);
            std::memcpy(codes.data() + 2 * i, &code, 2);
        }
        check_bits(decode<F>(codes), file.f32("all_codes_f32"), name + " all codes");
    }
}

}  // namespace

TEST_CASE("C46 every format decodes to the golden bits, MXFP4 with every scale byte") {
#define FRUGAL_CHECK_FORMAT(format) \
    if constexpr (!std::is_same_v<quant::format, quant::f32>) check_format<quant::format>();
    FRUGAL_FORMATS(FRUGAL_CHECK_FORMAT)
#undef FRUGAL_CHECK_FORMAT
}

TEST_CASE("C46 scale bytes of MXFP4 with code 1.0, the smallest ones too where arithmetic flushes subnormal numbers") {
    const auto value = [](unsigned byte) {
        std::vector<std::uint8_t> block(quant::mxfp4::block_bytes, 0x22);  // code 2 is 1.0
        block[0] = static_cast<std::uint8_t>(byte);
        return decode<quant::mxfp4>(block)[0];
    };
    const auto check_all = [&] {
        // Compared as bits: flushing would make a comparison of subnormal numbers true.
        const auto same = [](float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); };
        CHECK(same(value(0), 0x1p-127f));
        CHECK(same(value(1), 0x1p-126f));
        CHECK(same(value(126), 0.5f));
        CHECK(same(value(127), 1.0f));
        CHECK(same(value(128), 2.0f));
        CHECK(same(value(134), 128.0f));
        CHECK(same(value(253), 0x1p126f));
        CHECK(same(value(254), 0x1p127f));
        CHECK(std::isinf(value(255)));  // 2^128: as gguf-py and ggml; the OCP text says NaN
    };
    check_all();
#if defined(__SSE2__)
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040u);  // flush to zero, denormals are zero
    check_all();
    std::vector<std::uint8_t> codes(quant::mxfp4::block_bytes);
    for (std::size_t i = 0; i < 16; ++i) codes[1 + i] = static_cast<std::uint8_t>(17 * i);
    const std::vector<float> flushed = decode<quant::mxfp4>(codes);
    __builtin_ia32_ldmxcsr(before);
    for (std::size_t i = 0; i < 32; ++i) {
        const float want = static_cast<float>(quant::mxfp4::levels[i % 16]) * 0x1p-128f;
        CHECK(std::bit_cast<std::uint32_t>(flushed[i]) == std::bit_cast<std::uint32_t>(want));
    }
#endif
}

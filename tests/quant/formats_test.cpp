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
    CHECK_MESSAGE(bad == 0, what, ": ", bad, " of ", got.size(), " differ; last at ", where, ": got ", got[where], ", want ", want[where]);
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
    if (file.has("bits_raw")) check_bits(decode<F>(file.get<std::uint8_t>("bits_raw")), file.f32("bits_deq"), name + " random blocks");
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

TEST_CASE("every format decodes to the golden bits") {
#define FRUGAL_CHECK_FORMAT(format) \
    if constexpr (!std::is_same_v<quant::format, quant::f32>) check_format<quant::format>();
    FRUGAL_FORMATS(FRUGAL_CHECK_FORMAT)
#undef FRUGAL_CHECK_FORMAT
}

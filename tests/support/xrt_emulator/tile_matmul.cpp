#include "xrt_emulator/tile_matmul.hpp"

#include <cstring>

#include "xrt_emulator/xclbin_builder.hpp"

namespace xrt_emulator {
namespace {

constexpr std::uint32_t stream_mark = 0x4C475246;  // first word of every instruction stream

float from_bfloat16(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

std::uint16_t load16(const std::byte* at) {
    std::uint16_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

void expect(bool right, const std::string& what) {
    if (!right) throw device_fault(what);
}

void run(const tile_matmul& kernel, const kernel_call& call) {
    constexpr std::size_t tile_rows = tile_matmul::tile_rows, tile_columns = tile_matmul::tile_columns;
    expect(call.scalar<std::uint64_t>(0) == tile_matmul::opcode, "unknown opcode");
    expect(call.scalar<std::uint32_t>(2) == 4, "an instruction stream of another length");
    call.require_resident(1, 4 * sizeof(std::uint32_t));
    const auto stream = call.buffer<std::uint32_t>(1);
    expect(stream[0] == stream_mark && stream[1] == kernel.tokens, "an instruction stream for another kernel");
    const std::size_t tokens = kernel.tokens, rows = stream[2], columns = stream[3];
    expect(rows % tile_rows == 0 && columns % tile_columns == 0, "a shape that is not padded to whole tiles");
    if (kernel.shape_scalars)
        expect(call.scalar<std::uint32_t>(6) == tokens && call.scalar<std::uint32_t>(7) == rows &&
                   call.scalar<std::uint32_t>(8) == columns,
               "shape arguments that differ from the instruction stream");
    // Never read, but the hardware may touch them: they must be memory.
    for (std::size_t i = 0; i < kernel.spare_buffers; ++i) (void)call.bytes((kernel.shape_scalars ? 9 : 6) + i);

    call.require_resident(4, rows / tile_rows * (columns / tile_columns) * tile_matmul::tile_bytes);
    call.take_input(3, tokens * columns * sizeof(std::uint16_t));
    const auto input = call.buffer<std::uint16_t>(3);
    for (std::size_t i = 0; i < tokens * columns; ++i)
        expect(!kernel_call::is_stale(input[i]),
               "row " + std::to_string(i / columns) + " of the activations was not written for this launch");
    const auto output = call.buffer<float>(5);
    expect(output.size() >= tokens * rows, "the output is too small");

    std::vector<float> x(tokens * columns);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = from_bfloat16(input[i]);
    const std::byte* tile = call.bytes(4).data();
    std::vector<float> weights(tile_rows * tile_columns), sums(tokens * tile_rows);
    for (std::size_t down = 0; down < rows / tile_rows; ++down) {
        sums.assign(sums.size(), 0.0f);
        for (std::size_t across = 0; across < columns / tile_columns; ++across, tile += tile_matmul::tile_bytes) {
            tile_matmul::decode(tile, weights.data());
            for (std::size_t t = 0; t < tokens; ++t) {
                const float* from = x.data() + t * columns + across * tile_columns;
                float* sum = sums.data() + t * tile_rows;
                for (std::size_t c = 0; c < tile_columns; ++c)
                    for (std::size_t r = 0; r < tile_rows; ++r) sum[r] += from[c] * weights[c * tile_rows + r];
            }
        }
        for (std::size_t t = 0; t < tokens; ++t)
            std::memcpy(output.data() + t * rows + down * tile_rows, sums.data() + t * tile_rows, tile_rows * sizeof(float));
    }
}

}  // namespace

kernel_spec tile_matmul::spec() const {
    kernel_spec out{name,
                    {u64_argument("opcode"), buffer_argument("instructions"), u32_argument("instruction_count"),
                     buffer_argument("activations"), buffer_argument("weights"), buffer_argument("output")}};
    if (shape_scalars)
        for (const char* scalar : {"tokens", "rows", "columns"}) out.arguments.push_back(u32_argument(scalar));
    for (unsigned i = 0; i < spare_buffers; ++i) out.arguments.push_back(buffer_argument("spare" + std::to_string(i)));
    return out;
}

std::string tile_matmul::tag() const {
    return "frugal-tile-matmul 1 tile=" + tile + " tokens=" + std::to_string(tokens) + " activations=bf16 output=f32";
}

std::vector<char> tile_matmul::binary(std::array<unsigned char, 16> id) const {
    return xclbin_builder().add(spec()).tag(tag()).id(id).build();
}

void tile_matmul::install() const {
    register_kernel(spec(), [kernel = *this](const kernel_call& call) { run(kernel, call); });
}

std::vector<std::uint32_t> tile_matmul::instructions(std::size_t rows, std::size_t columns) const {
    const auto word = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
    return {stream_mark, word(tokens), word(rows), word(columns)};
}

void tile_matmul::decode(const std::byte* tile, float* out) {
    constexpr std::size_t groups = tile_columns / group, lane_rows = 16;
    const std::byte* scales = tile;                                // bfloat16 [group][row]
    const std::byte* offsets = scales + 2 * groups * tile_rows;    // bfloat16 [group][row]
    const std::byte* codes = offsets + 2 * groups * tile_rows;     // [lane of 16 rows][column][8], low half: even row
    for (std::size_t c = 0; c < tile_columns; ++c)
        for (std::size_t r = 0; r < tile_rows; ++r) {
            const std::size_t parameters = 2 * (c / group * tile_rows + r);
            const auto pair = std::to_integer<unsigned>(codes[(r / lane_rows * tile_columns + c) * 8 + r % lane_rows / 2]);
            const unsigned code = r % 2 == 0 ? pair & 15u : pair >> 4;
            out[c * tile_rows + r] = static_cast<float>(code) * from_bfloat16(load16(scales + parameters)) +
                                     from_bfloat16(load16(offsets + parameters));
        }
}

}  // namespace xrt_emulator

// Any bytes as a safetensors file: refused with a message, or its tensors cover its data exactly.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "frugal/io/safetensors.hpp"

namespace io = frugal::io;

namespace {
volatile std::size_t sink = 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto file = io::safetensors_file::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    if (!file) {
        if (file.error().message.empty()) std::abort();
        return 0;
    }
    std::uint64_t header = 0;
    std::memcpy(&header, data, sizeof(header));
    std::size_t covered = 0, sum = 0;
    for (const auto& tensor : file->tensors()) {
        if (file->find(tensor.name) != &tensor) std::abort();
        if (tensor.elements() * io::safetensors_dtype_bits(tensor.dtype) != tensor.bytes.size() * 8) std::abort();
        for (const auto byte : tensor.bytes) sum += static_cast<std::size_t>(byte);
        covered += tensor.bytes.size();
        sum += io::quant_type_of(tensor).has_value();
    }
    if (covered != size - sizeof(header) - header) std::abort();
    sink = sink + sum;
    return 0;
}

// Any bytes as a GGUF file: refused with a message, or every value and tensor of it can be read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "frugal/io/gguf.hpp"

namespace io = frugal::io;

namespace {
volatile std::size_t sink = 0;

void use(std::span<const std::byte> bytes) {
    std::size_t sum = 0;
    for (const auto byte : bytes) sum += static_cast<std::size_t>(byte);
    sink = sink + sum;
}
void use(std::string_view text) { use(std::as_bytes(std::span(text))); }
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto file = io::gguf_file::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    if (!file) {
        if (file.error().message.empty()) std::abort();
        return 0;
    }
    for (const auto& entry : file->metadata()) {
        const auto key = entry.key;
        if (!file->has(key) || file->find_entry(key) != &entry) std::abort();
        sink = sink + file->u32(key).has_value() + file->u64(key).has_value() + file->i32(key).has_value() +
               file->i64(key).has_value() + file->f32(key).has_value() + file->boolean(key).has_value() +
               file->u64_list(key).has_value() + file->i64_list(key).has_value() + file->f32_list(key).has_value() +
               file->bool_list(key).has_value();
        if (const auto text = file->string(key)) use(*text);
        if (const auto list = file->string_list(key))
            for (const auto text : *list) use(text);
    }
    for (const auto& tensor : file->tensors()) {
        if (file->find(tensor.name) != &tensor) std::abort();
        if (const auto bytes = file->bytes(tensor)) use(*bytes);
    }
    return 0;
}

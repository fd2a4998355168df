// Any bytes as a GGUF file, or as the parts of one: refused with a message, or every value and tensor of it can be read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

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

/// Everything that a file offers.
void use(const io::gguf_file& file) {
    for (const auto& entry : file.metadata()) {
        const auto key = entry.key;
        if (!file.has(key) || file.find_entry(key) != &entry) std::abort();
        sink = sink + file.u32(key).has_value() + file.u64(key).has_value() + file.i32(key).has_value() +
               file.i64(key).has_value() + file.f32(key).has_value() + file.boolean(key).has_value() +
               file.u64_list(key).has_value() + file.i64_list(key).has_value() + file.f32_list(key).has_value() +
               file.bool_list(key).has_value();
        if (const auto text = file.string(key)) use(*text);
        if (const auto list = file.string_list(key))
            for (const auto text : *list) use(text);
    }
    for (const auto& tensor : file.tensors()) {
        if (file.find(tensor.name) != &tensor) std::abort();
        if (const auto bytes = file.bytes(tensor)) use(*bytes);
    }
}

/// The parts of a model, one behind the other: each begins where the magic stands.
void use_parts(std::string_view text) {
    std::vector<io::gguf_file> parts;
    for (std::size_t begin = 0; begin < text.size() && parts.size() < 8;) {
        const std::size_t end = std::min(text.find("GGUF", begin + 4), text.size());
        auto part = io::gguf_file::parse(std::as_bytes(std::span(text.substr(begin, end - begin))), "part");
        if (!part) return;
        parts.push_back(*std::move(part));
        begin = end;
    }
    if (parts.size() < 2) return;
    const auto whole = io::gguf_file::join(std::move(parts));
    if (whole)
        use(*whole);
    else if (whole.error().message.empty())
        std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    use_parts({reinterpret_cast<const char*>(data), size});
    const auto file = io::gguf_file::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    if (file)
        use(*file);
    else if (file.error().message.empty())
        std::abort();
    return 0;
}

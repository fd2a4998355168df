#pragma once
/// Writes GGUF files byte by byte, right or wrong.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace test {

struct gguf_builder {
    std::string text;

    template <class T>
    gguf_builder& raw(T value) {
        text.append(reinterpret_cast<const char*>(&value), sizeof(T));
        return *this;
    }
    gguf_builder& u32(std::uint32_t value) { return raw(value); }
    gguf_builder& u64(std::uint64_t value) { return raw(value); }
    gguf_builder& string(std::string_view value) {
        u64(value.size());
        text += value;
        return *this;
    }
    /// `magic`, version and counts.
    gguf_builder& header(std::uint64_t tensors, std::uint64_t entries, std::uint32_t version = 3) {
        text += "GGUF";
        return u32(version).u64(tensors).u64(entries);
    }
    gguf_builder& key(std::string_view name, std::uint32_t type) { return string(name).u32(type); }
    template <class T>
    gguf_builder& value(std::string_view name, std::uint32_t type, T content) {
        return key(name, type).raw(content);
    }
    gguf_builder& string_value(std::string_view name, std::string_view content) { return key(name, 8).string(content); }
    template <class T>
    gguf_builder& array(std::string_view name, std::uint32_t element, const std::vector<T>& content) {
        key(name, 9).u32(element).u64(content.size());
        for (const auto& one : content) raw(one);
        return *this;
    }
    gguf_builder& string_array(std::string_view name, const std::vector<std::string>& content) {
        key(name, 9).u32(8).u64(content.size());
        for (const auto& one : content) string(one);
        return *this;
    }
    gguf_builder& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                         std::uint64_t offset) {
        string(name).u32(static_cast<std::uint32_t>(dims.size()));
        for (const auto dim : dims) u64(dim);
        return u32(type).u64(offset);
    }
    gguf_builder& pad(std::size_t alignment = 32) {
        while (text.size() % alignment != 0) text += '\0';
        return *this;
    }
    gguf_builder& data(std::size_t bytes) {
        for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i);
        return *this;
    }
};

/// A small file with every metadata type and three tensors (f32 [3,2], q8_0 [32], and an unknown type 999).
inline std::string small_gguf() {
    gguf_builder out;
    out.header(3, 17)
        .value("a.u8", 0, std::uint8_t{200})
        .value("a.i8", 1, std::int8_t{-5})
        .value("a.u16", 2, std::uint16_t{60000})
        .value("a.i16", 3, std::int16_t{-300})
        .value("a.u32", 4, std::uint32_t{4000000000u})
        .value("a.i32", 5, std::int32_t{7})
        .value("a.f32", 6, 1.5f)
        .value("a.bool", 7, std::uint8_t{1})
        .string_value("a.string", "text")
        .value("a.u64", 10, std::uint64_t{1} << 45)
        .value("a.i64", 11, std::int64_t{-1})
        .value("a.f64", 12, 0.25)
        .array<std::uint64_t>("a.u64s", 10, {35184372088891u, 2})
        .array<std::int32_t>("a.i32s", 5, {11, 11, 10, 0})
        .array<std::uint8_t>("a.bools", 7, {1, 0, 1})
        .string_array("a.strings", {"one", "", "three"})
        .array<float>("a.f32s", 6, {1.0f, 2.0f})
        .tensor("first", {3, 2}, 0, 0)
        .tensor("second", {32}, 8, 32)
        .tensor("third", {1}, 999, 96)
        .pad()
        .data(24 + 8 + 34 + 30 + 4);
    return out.text;
}

}  // namespace test

#pragma once
/// A real GGUF file taken apart, changed and written again, whole or in parts.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/io/gguf.hpp"
#include "gguf_builder.hpp"

namespace test {

class gguf_editor {
public:
    struct tensor {
        std::string name;
        std::vector<std::uint64_t> dims;  // innermost first
        std::uint32_t type = 0;
        std::string bytes;
    };

    explicit gguf_editor(const frugal::io::gguf_file& file) {
        const auto entries = file.metadata();
        for (std::size_t i = 0; i < entries.size(); ++i) {
            // A value goes from behind its key to the length of the next key, or of the first tensor's name.
            const char* const begin = entries[i].key.data() + entries[i].key.size();
            const std::string_view next = i + 1 < entries.size() ? entries[i + 1].key : file.tensors()[0].name;
            entries_.push_back({std::string(entries[i].key), {begin, static_cast<std::size_t>(next.data() - 8 - begin)}});
        }
        for (const auto& t : file.tensors()) {
            const auto bytes = *file.bytes(t);
            tensors.push_back({std::string(t.name),
                               {t.dims.begin(), t.dims.begin() + t.n_dims},
                               static_cast<std::uint32_t>(t.type),
                               {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
        }
    }

    std::vector<tensor> tensors;

    [[nodiscard]] tensor& at(std::string_view name) {
        return *std::find_if(tensors.begin(), tensors.end(), [&](const tensor& t) { return t.name == name; });
    }
    void erase(std::string_view key) {
        std::erase_if(entries_, [&](const entry& e) { return e.key == key; });
    }
    template <class T>
    gguf_editor& set(std::string_view key, std::uint32_t type, T value) {
        return put(key, gguf_builder().u32(type).raw(value).text);
    }
    gguf_editor& set_u32(std::string_view key, std::uint32_t value) { return set(key, 4, value); }
    gguf_editor& set_f32(std::string_view key, float value) { return set(key, 6, value); }
    gguf_editor& set_bool(std::string_view key, bool value) { return set(key, 7, static_cast<std::uint8_t>(value)); }
    gguf_editor& set_text(std::string_view key, std::string_view value) {
        return put(key, gguf_builder().u32(8).string(value).text);
    }
    template <class T>
    gguf_editor& set_list(std::string_view key, std::uint32_t element, const std::vector<T>& values) {
        gguf_builder out;
        out.u32(9).u32(element).u64(values.size());
        for (const T& value : values) out.raw(value);
        return put(key, out.text);
    }

    [[nodiscard]] std::string whole() const { return write(entries_, tensors); }

    /// `count` files as gguf-split writes them: metadata in the first, tensors in turn.
    [[nodiscard]] std::vector<std::string> parts(std::size_t count) const {
        std::vector<std::string> out;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t begin = tensors.size() * i / count, end = tensors.size() * (i + 1) / count;
            std::vector<entry> keys = i == 0 ? entries_ : std::vector<entry>{};
            keys.push_back({"split.no", gguf_builder().u32(2).raw(static_cast<std::uint16_t>(i)).text});
            keys.push_back({"split.count", gguf_builder().u32(2).raw(static_cast<std::uint16_t>(count)).text});
            keys.push_back({"split.tensors.count", gguf_builder().u32(5).raw(static_cast<std::int32_t>(tensors.size())).text});
            out.push_back(write(keys, {tensors.begin() + static_cast<std::ptrdiff_t>(begin),
                                       tensors.begin() + static_cast<std::ptrdiff_t>(end)}));
        }
        return out;
    }

private:
    struct entry {
        std::string key, value;  // type and value as they lie in the file
    };

    gguf_editor& put(std::string_view key, std::string value) {
        erase(key);
        entries_.push_back({std::string(key), std::move(value)});
        return *this;
    }

    [[nodiscard]] static std::string write(const std::vector<entry>& entries, const std::vector<tensor>& tensors) {
        gguf_builder out;
        out.header(tensors.size(), entries.size());
        for (const entry& e : entries) {
            out.string(e.key);
            out.text += e.value;
        }
        std::uint64_t offset = 0;
        for (const tensor& t : tensors) {
            out.tensor(t.name, t.dims, t.type, offset);
            offset += (t.bytes.size() + 31) / 32 * 32;
        }
        out.pad();
        for (const tensor& t : tensors) {
            out.text += t.bytes;
            out.pad();
        }
        return out.text;
    }

    std::vector<entry> entries_;
};

}  // namespace test

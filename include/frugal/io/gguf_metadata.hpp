#pragma once
/// The metadata of a GGUF file: values by key, read where they lie in the file. `gguf.hpp` finds and checks them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf_types.hpp"
#include "frugal/io/printable.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// One metadata entry. `offset` is where its value lies in the file: of an array or string, where the elements start.
struct FRUGAL_FLAGGED gguf_entry {
    std::string_view key;
    gguf_value_type type{};          ///< `array` for arrays
    gguf_value_type element_type{};  ///< of an array's elements; else the same as `type`
    std::uint64_t count = 1;         ///< elements of an array, bytes of a string, else 1
    std::uint64_t offset = 0;
};

/// The metadata of an open GGUF file, which derives from it. Move-only, as the file is.
class FRUGAL_FLAGGED gguf_metadata {
public:
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] std::span<const gguf_entry> metadata() const noexcept { return entries_; }

    // Errors: not_found (no such key), invalid_argument (the value has another type or does not fit; names key,
    // wanted and found type).

    [[nodiscard]] bool has(std::string_view key) const { return keys_.contains(key); }
    /// The entry, or null.
    [[nodiscard]] const gguf_entry* find_entry(std::string_view key) const {
        const auto found = keys_.find(key);
        return found == keys_.end() ? nullptr : &entries_[found->second];
    }
    /// From any integer type, where the value fits.
    [[nodiscard]] result<std::uint32_t> u32(std::string_view key) const { return scalar<std::uint32_t>(key, "u32"); }
    [[nodiscard]] result<std::uint64_t> u64(std::string_view key) const { return scalar<std::uint64_t>(key, "u64"); }
    [[nodiscard]] result<std::int32_t> i32(std::string_view key) const { return scalar<std::int32_t>(key, "i32"); }
    [[nodiscard]] result<std::int64_t> i64(std::string_view key) const { return scalar<std::int64_t>(key, "i64"); }
    /// From f32, or f64 rounded.
    [[nodiscard]] result<float> f32(std::string_view key) const { return scalar<float>(key, "f32"); }
    [[nodiscard]] result<bool> boolean(std::string_view key) const { return scalar<bool>(key, "bool"); }
    [[nodiscard]] result<std::string_view> string(std::string_view key) const {
        FRUGAL_TRY_ASSIGN(const gguf_entry* entry, entry_of(key));
        if (entry->type != gguf_value_type::string) return wrong_type(*entry, "string");
        return text(entry->offset, entry->count);
    }

    /// The value, or `fallback` where the key is absent; a value of another type is still an error.
    [[nodiscard]] result<std::uint32_t> u32_or(std::string_view key, std::uint32_t fallback) const {
        return has(key) ? u32(key) : result<std::uint32_t>(fallback);
    }
    [[nodiscard]] result<float> f32_or(std::string_view key, float fallback) const {
        return has(key) ? f32(key) : result<float>(fallback);
    }
    [[nodiscard]] result<bool> boolean_or(std::string_view key, bool fallback) const {
        return has(key) ? boolean(key) : result<bool>(fallback);
    }
    [[nodiscard]] result<std::string_view> string_or(std::string_view key, std::string_view fallback) const {
        return has(key) ? string(key) : result<std::string_view>(fallback);
    }

    /// An array of any integer type, or one integer as a list of one: many keys of the format may be either.
    [[nodiscard]] result<std::vector<std::uint64_t>> u64_list(std::string_view key) const {
        return list<std::uint64_t>(key, "list of u64");
    }
    [[nodiscard]] result<std::vector<std::int64_t>> i64_list(std::string_view key) const {
        return list<std::int64_t>(key, "list of i64");
    }
    [[nodiscard]] result<std::vector<float>> f32_list(std::string_view key) const { return list<float>(key, "list of f32"); }
    /// Booleans; also integers that are 0 or 1.
    [[nodiscard]] result<std::vector<bool>> bool_list(std::string_view key) const {
        FRUGAL_TRY_ASSIGN(const gguf_entry* entry, entry_of(key));
        std::vector<bool> out;
        out.reserve(static_cast<std::size_t>(entry->type == gguf_value_type::string ? 0 : entry->count));
        const bool booleans = entry->element_type == gguf_value_type::boolean;
        FRUGAL_TRY(each_element(*entry, "list of bool", [&](std::uint64_t where) -> status {
            std::uint64_t value = 0;
            if (booleans)
                value = load<std::uint8_t>(where);
            else if (!convert(entry->element_type, where, value) || value > 1)
                return wrong_type(*entry, "list of bool");
            out.push_back(value != 0);
            return {};
        }));
        return out;
    }
    [[nodiscard]] result<std::vector<std::string_view>> string_list(std::string_view key) const {
        FRUGAL_TRY_ASSIGN(const gguf_entry* entry, entry_of(key));
        if (entry->type != gguf_value_type::array || entry->element_type != gguf_value_type::string)
            return wrong_type(*entry, "list of string");
        std::vector<std::string_view> out;
        out.reserve(static_cast<std::size_t>(entry->count));
        std::uint64_t where = entry->offset;
        for (std::uint64_t i = 0; i < entry->count; ++i) {
            const auto length = load<std::uint64_t>(where);
            out.push_back(text(where + 8, length));
            where += 8 + length;
        }
        return out;
    }

protected:
    gguf_metadata(std::span<const std::byte> bytes, std::string name) noexcept : bytes_(bytes), name_(std::move(name)) {}
    gguf_metadata(gguf_metadata&&) = default;
    gguf_metadata& operator=(gguf_metadata&&) = default;
    ~gguf_metadata() = default;

    [[nodiscard]] std::span<const std::byte> file_bytes() const noexcept { return bytes_; }

    /// Takes in an entry whose value has been checked; false where its key is there already.
    [[nodiscard]] bool add(const gguf_entry& entry) {
        if (!keys_.emplace(entry.key, entries_.size()).second) return false;
        entries_.push_back(entry);
        return true;
    }

    template <class... Piece>
    [[nodiscard]] error malformed(const Piece&... piece) const {
        return fail(errc::malformed_file, name_, ": ", piece...);
    }

    template <class T>
    [[nodiscard]] T load(std::uint64_t where) const noexcept {
        T value;
        std::memcpy(&value, bytes_.data() + where, sizeof(T));
        return value;
    }

    [[nodiscard]] std::string_view text(std::uint64_t where, std::uint64_t length) const noexcept {
        return {reinterpret_cast<const char*>(bytes_.data()) + where, static_cast<std::size_t>(length)};
    }

private:
    [[nodiscard]] result<const gguf_entry*> entry_of(std::string_view key) const {
        const auto* entry = find_entry(key);
        if (entry == nullptr) return fail(errc::not_found, name_, ": no metadata key ", printable(key));
        return entry;
    }

    [[nodiscard]] error wrong_type(const gguf_entry& entry, std::string_view wanted) const {
        std::string found{to_string(entry.type)};
        if (entry.type == gguf_value_type::array)
            found = concat("array of ", entry.count, ' ', to_string(entry.element_type));
        else if (entry.type == gguf_value_type::string)
            found += concat(" ", printable(text(entry.offset, entry.count)));
        else if (std::int64_t value = 0; convert(entry.type, entry.offset, value))
            found += concat(" ", value);
        return fail(errc::invalid_argument, name_, ": metadata key ", printable(entry.key), " is wanted as ", wanted,
                    " but the file has ", found);
    }

    /// Whether the number of type `type` at `where` is, without loss, a `To` (floating point: f64 rounds to f32).
    template <class To>
    [[nodiscard]] bool convert(gguf_value_type type, std::uint64_t where, To& out) const noexcept {
        const auto from = [&]<class From>(From value) {
            if constexpr (std::is_integral_v<To> && !std::is_same_v<To, bool>) {
                if (!std::in_range<To>(value)) return false;
                out = static_cast<To>(value);
                return true;
            } else {
                return false;
            }
        };
        if constexpr (std::is_same_v<To, bool>) {
            if (type != gguf_value_type::boolean) return false;
            out = load<std::uint8_t>(where) != 0;
            return true;
        } else if constexpr (std::is_floating_point_v<To>) {
            if (type == gguf_value_type::f32)
                out = static_cast<To>(load<float>(where));
            else if (type == gguf_value_type::f64)
                out = static_cast<To>(load<double>(where));
            else
                return false;
            return true;
        }
        switch (type) {
            case gguf_value_type::u8: return from(load<std::uint8_t>(where));
            case gguf_value_type::i8: return from(load<std::int8_t>(where));
            case gguf_value_type::u16: return from(load<std::uint16_t>(where));
            case gguf_value_type::i16: return from(load<std::int16_t>(where));
            case gguf_value_type::u32: return from(load<std::uint32_t>(where));
            case gguf_value_type::i32: return from(load<std::int32_t>(where));
            case gguf_value_type::u64: return from(load<std::uint64_t>(where));
            case gguf_value_type::i64: return from(load<std::int64_t>(where));
            default: return false;
        }
    }

    template <class T>
    [[nodiscard]] result<T> scalar(std::string_view key, std::string_view wanted) const {
        FRUGAL_TRY_ASSIGN(const gguf_entry* entry, entry_of(key));
        T value{};
        if (!convert(entry->type, entry->offset, value)) return wrong_type(*entry, wanted);
        return value;
    }

    template <class Visit>
    [[nodiscard]] status each_element(const gguf_entry& entry, std::string_view wanted, Visit visit) const {
        const std::uint64_t size = size_of(entry.element_type);
        if (size == 0) return wrong_type(entry, wanted);
        for (std::uint64_t i = 0; i < entry.count; ++i) FRUGAL_TRY(visit(entry.offset + i * size));
        return {};
    }

    template <class T>
    [[nodiscard]] result<std::vector<T>> list(std::string_view key, std::string_view wanted) const {
        FRUGAL_TRY_ASSIGN(const gguf_entry* entry, entry_of(key));
        std::vector<T> out;
        FRUGAL_TRY(each_element(*entry, wanted, [&](std::uint64_t where) -> status {
            T value{};
            if (!convert(entry->element_type, where, value)) return wrong_type(*entry, wanted);
            out.push_back(value);
            return {};
        }));
        return out;
    }

    std::span<const std::byte> bytes_;
    std::string name_;
    std::vector<gguf_entry> entries_;
    std::unordered_map<std::string_view, std::size_t> keys_;
};

}  // namespace io

FRUGAL_NAMESPACE_END

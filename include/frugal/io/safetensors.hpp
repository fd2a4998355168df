#pragma once
/// Reads safetensors: one file, or a Hugging Face model directory whose tensors lie in one file or in several behind an index.
///
/// Files are taken to be hostile: offsets are checked against the shape, the type, the file and each other before anything is
/// handed out, and memory stays proportional to the header. Tensors are views into the memory map.
/// Format: README.md of huggingface/safetensors. Needs nlohmann/json.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "frugal/core/error.hpp"
#include "frugal/io/json.hpp"
#include "frugal/io/mapped_file.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/quant/format.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// A tensor: row-major, little-endian, last dimension fastest. `bytes` holds exactly the elements that `shape` asks for.
struct FRUGAL_FLAGGED safetensor {
    std::string name;
    std::string dtype;  ///< as the file spells it: "BF16", "F32", "I64", …
    std::vector<std::uint64_t> shape;
    std::span<const std::byte> bytes;

    /// Product of the shape; 1 for a scalar.
    [[nodiscard]] std::uint64_t elements() const noexcept {
        std::uint64_t product = 1;
        for (const auto extent : shape) product *= extent;
        return product;
    }
};

/// Bits of one element; 0 for a dtype that is not known.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::size_t safetensors_dtype_bits(std::string_view dtype) noexcept {
    struct entry {
        std::string_view name;
        std::size_t bits;
    };
    constexpr std::array table = {
        entry{"F64", 64},     entry{"F32", 32},         entry{"F16", 16},         entry{"BF16", 16},   entry{"I64", 64},
        entry{"I32", 32},     entry{"I16", 16},         entry{"I8", 8},           entry{"U64", 64},    entry{"U32", 32},
        entry{"U16", 16},     entry{"U8", 8},           entry{"BOOL", 8},         entry{"F8_E4M3", 8}, entry{"F8_E5M2", 8},
        entry{"F8_E8M0", 8},  entry{"F8_E4M3FNUZ", 8},  entry{"F8_E5M2FNUZ", 8},  entry{"F4", 4},      entry{"F6_E2M3", 6},
        entry{"F6_E3M2", 6},  entry{"C64", 64},
        entry{"Q4NX", 5},  // of NPU containers: 8192 weights in tiles of 5120 bytes (io/q4nx_file.hpp)
    };
    for (const auto& [name, bits] : table)
        if (name == dtype) return bits;
    return 0;
}

/// The quantization type of a dtype that products can read: F32, F16, BF16. Errors: unsupported_format, naming the tensor.
[[nodiscard]] inline result<quant::type_id> quant_type_of(const safetensor& tensor) {
    if (tensor.dtype == "F32") return quant::type_id{0};
    if (tensor.dtype == "F16") return quant::type_id{1};
    if (tensor.dtype == "BF16") return quant::type_id{30};
    return fail(errc::unsupported_format, "tensor ", printable(tensor.name), " has dtype ", printable(tensor.dtype),
                "; weights can be read from F32, F16 and BF16");
}

namespace detail {

/// Takes a safetensors header apart while it is parsed, so that no value that does not belong there is ever stored.
class FRUGAL_FLAGGED safetensors_header_reader {
public:
    struct entry {
        std::string name, dtype;
        std::vector<std::uint64_t> shape, offsets;
        bool has_dtype = false, has_shape = false, has_offsets = false;
    };

    std::vector<entry> entries;
    std::map<std::string, std::string> metadata;
    std::string problem;  ///< why parsing stopped; empty if the JSON itself is broken
    std::size_t broken_at = 0;

    using json = nlohmann::json;
    bool null() { return unexpected("null"); }
    bool boolean(bool) { return unexpected("a boolean"); }
    bool number_float(json::number_float_t, const std::string& text) { return unexpected("the number " + printable(text)); }
    bool binary(json::binary_t&) { return unexpected("binary"); }
    bool number_integer(json::number_integer_t value) { return unexpected(concat("the number ", value)); }
    bool number_unsigned(json::number_unsigned_t value) {
        if (where_ == place::shape) {
            entries.back().shape.push_back(value);
            return true;
        }
        if (where_ == place::offsets) {
            if (entries.back().offsets.size() == 2) return unexpected("a third offset");
            entries.back().offsets.push_back(value);
            return true;
        }
        return unexpected(concat("the number ", value));
    }
    bool string(std::string& value) {
        if (where_ == place::dtype) {
            entries.back().dtype = std::move(value);
            where_ = place::tensor;
            return true;
        }
        if (where_ == place::metadata_value) {
            metadata.insert_or_assign(std::move(key_), std::move(value));
            where_ = place::metadata;
            return true;
        }
        return unexpected("the text " + printable(value));
    }
    bool start_object(std::size_t) {
        switch (where_) {
            case place::start: where_ = place::top; return true;
            case place::tensor_value:
                entries.emplace_back().name = std::move(key_);
                where_ = place::tensor;
                return true;
            case place::metadata_object: where_ = place::metadata; return true;
            default: return unexpected("an object");
        }
    }
    bool key(std::string& value) {
        switch (where_) {
            case place::top: where_ = value == "__metadata__" ? place::metadata_object : place::tensor_value; break;
            case place::metadata: where_ = place::metadata_value; break;
            default: return tensor_key(value);
        }
        key_ = std::move(value);
        return true;
    }
    bool end_object() {
        if (where_ == place::tensor) {
            const auto& last = entries.back();
            if (!last.has_dtype || !last.has_shape || !last.has_offsets || last.offsets.size() != 2)
                return stop(concat("tensor ", printable(last.name), " lacks its dtype, shape or pair of data_offsets"));
            where_ = place::top;
        } else if (where_ == place::metadata) {
            where_ = place::top;
        }
        return true;
    }
    bool start_array(std::size_t) {
        if (where_ == place::shape_value) where_ = place::shape;
        else if (where_ == place::offsets_value) where_ = place::offsets;
        else return unexpected("an array");
        return true;
    }
    bool end_array() {
        where_ = place::tensor;
        return true;
    }
    template <class Exception>
    bool parse_error(std::size_t position, const std::string&, const Exception&) {
        broken_at = position;
        return false;
    }

private:
    enum class place : std::uint8_t {
        start,
        top,
        tensor_value,
        tensor,
        dtype,
        shape_value,
        shape,
        offsets_value,
        offsets,
        metadata_object,
        metadata,
        metadata_value,
    };

    bool stop(std::string why) {
        problem = std::move(why);
        return false;
    }
    bool unexpected(const std::string& what) {
        std::string around = "at the top";
        if (where_ >= place::metadata_object)
            around = "in __metadata__";
        else if (where_ == place::tensor_value)
            around = "as the value of " + printable(key_);
        else if (where_ > place::tensor_value)
            around = "in tensor " + printable(entries.back().name);
        return stop(concat(what, " does not belong ", around));
    }
    bool tensor_key(const std::string& key) {
        auto& last = entries.back();
        bool* seen = nullptr;
        if (key == "dtype") seen = &last.has_dtype, where_ = place::dtype;
        if (key == "shape") seen = &last.has_shape, where_ = place::shape_value;
        if (key == "data_offsets") seen = &last.has_offsets, where_ = place::offsets_value;
        if (seen == nullptr) return unexpected("the key " + printable(key));
        if (*seen) return stop(concat("tensor ", printable(last.name), " has ", key, " twice"));
        return *seen = true;
    }

    place where_ = place::start;
    std::string key_;
};

}  // namespace detail

/// One .safetensors file. Move-only; what it has handed out stays valid when it moves and ends with it.
class FRUGAL_FLAGGED safetensors_file {
public:
    /// The format's own limit on the header.
    static constexpr std::uint64_t most_header_bytes = 100'000'000;

    /// Maps and checks the file. Errors: those of mapped_file::open and of parse.
    [[nodiscard]] static result<safetensors_file> open(const std::string& path) {
        FRUGAL_TRY_ASSIGN(mapped_file mapping, mapped_file::open(path));
        const auto bytes = mapping.bytes();
        FRUGAL_TRY_ASSIGN(safetensors_file file, parse(bytes, path));
        file.mapping_ = std::move(mapping);
        return file;
    }

    /// Checks a file that already lies in memory; `bytes` must outlive the result. `name` stands in messages.
    /// Errors: malformed_file, naming the tensor or the byte.
    [[nodiscard]] static result<safetensors_file> parse(std::span<const std::byte> bytes, std::string name) {
        safetensors_file file;
        file.name_ = std::move(name);
        FRUGAL_TRY(file.read(bytes));
        return file;
    }

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    /// In the order of the header.
    [[nodiscard]] std::span<const safetensor> tensors() const noexcept { return tensors_; }
    /// The file's `__metadata__`.
    [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }
    /// The tensor, or null.
    [[nodiscard]] const safetensor* find(std::string_view tensor) const {
        const auto found = names_.find(tensor);
        return found == names_.end() ? nullptr : &tensors_[found->second];
    }

private:
    safetensors_file() = default;

    template <class... Piece>
    [[nodiscard]] error malformed(const Piece&... piece) const {
        return fail(errc::malformed_file, name_, ": ", piece...);
    }

    [[nodiscard]] status read(std::span<const std::byte> bytes) {
        std::uint64_t header_size = 0;
        if (bytes.size() < sizeof(header_size))
            return malformed("not a safetensors file: ", bytes.size(), " bytes are too few for a header length");
        std::memcpy(&header_size, bytes.data(), sizeof(header_size));
        if (header_size > most_header_bytes)
            return malformed("the header claims ", header_size, " bytes; at most ", most_header_bytes, " are allowed");
        if (header_size > bytes.size() - sizeof(header_size))
            return malformed("the header claims ", header_size, " bytes; the file ends after ",
                             bytes.size() - sizeof(header_size), " of them");
        const auto header = bytes.subspan(sizeof(header_size), static_cast<std::size_t>(header_size));
        const auto data = bytes.subspan(sizeof(header_size) + static_cast<std::size_t>(header_size));
        const std::string_view text{reinterpret_cast<const char*>(header.data()), header.size()};
        if (text.empty() || text.front() != '{') return malformed("the header does not start with '{'");

        detail::safetensors_header_reader reader;
        if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
            if (!reader.problem.empty()) return malformed("header: ", reader.problem);
            return malformed("the header is not valid JSON (byte ", sizeof(header_size) + reader.broken_at, ")");
        }
        metadata_ = std::move(reader.metadata);
        tensors_.reserve(reader.entries.size());
        for (auto& entry : reader.entries) FRUGAL_TRY(add(entry, data));
        for (std::size_t i = 0; i < tensors_.size(); ++i)
            if (!names_.emplace(tensors_[i].name, i).second)
                return malformed("tensor ", printable(tensors_[i].name), " occurs twice");
        return check_cover(data);
    }

    [[nodiscard]] status add(detail::safetensors_header_reader::entry& entry, std::span<const std::byte> data) {
        constexpr std::uint64_t most = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
        const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
        const std::string shown = printable(entry.name);
        if (begin > end) return malformed("tensor ", shown, " begins at ", begin, " and ends before that, at ", end);
        if (end > data.size())
            return malformed("tensor ", shown, " ends at ", end, ", past the end of the data of ", data.size(), " bytes");
        const std::size_t bits = safetensors_dtype_bits(entry.dtype);
        if (bits == 0) return malformed("tensor ", shown, " has unknown dtype ", printable(entry.dtype));
        std::uint64_t elements = 1;
        bool empty = false;
        for (const auto extent : entry.shape) {
            if (extent > most / elements) return malformed("the shape of tensor ", shown, " overflows");
            empty = empty || extent == 0;
            elements *= std::max<std::uint64_t>(extent, 1);
        }
        if (empty) elements = 0;
        if (elements > most / bits) return malformed("the size of tensor ", shown, " overflows");
        if (elements * bits % 8 != 0) return malformed("tensor ", shown, " does not fill whole bytes");
        if (elements * bits / 8 != end - begin)
            return malformed("tensor ", shown, " of dtype ", entry.dtype, " needs ", elements * bits / 8,
                             " bytes by its shape but has ", end - begin);
        tensors_.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                            data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))});
        return {};
    }

    /// The tensors cover the data exactly once, as the format demands.
    [[nodiscard]] status check_cover(std::span<const std::byte> data) const {
        std::vector<const safetensor*> order;
        order.reserve(tensors_.size());
        for (const auto& tensor : tensors_) order.push_back(&tensor);
        const auto begin_of = [&](const safetensor* tensor) {
            return static_cast<std::uint64_t>(tensor->bytes.data() - data.data());
        };
        std::sort(order.begin(), order.end(), [&](const safetensor* a, const safetensor* b) {
            return std::pair(begin_of(a), a->bytes.size()) < std::pair(begin_of(b), b->bytes.size());
        });
        std::uint64_t covered = 0;
        for (const auto* tensor : order) {
            const std::uint64_t begin = begin_of(tensor);
            if (begin < covered)
                return malformed("tensor ", printable(tensor->name), " overlaps another: it begins at ", begin, ", before ",
                                 covered);
            if (begin > covered)
                return malformed("bytes ", covered, " to ", begin, " before tensor ", printable(tensor->name),
                                 " belong to no tensor");
            covered = begin + tensor->bytes.size();
        }
        if (covered != data.size())
            return malformed("bytes ", covered, " to ", data.size(), " at the end belong to no tensor");
        return {};
    }

    mapped_file mapping_;
    std::string name_;
    std::vector<safetensor> tensors_;
    std::unordered_map<std::string_view, std::size_t> names_;  // views into tensors_, whose elements never move again
    std::map<std::string, std::string> metadata_;
};

/// A model directory as Hugging Face lays it out. Move-only.
class FRUGAL_FLAGGED safetensors_directory {
public:
    /// Opens `directory`/model.safetensors, or else every shard that `directory`/model.safetensors.index.json names.
    /// Errors: not_found (neither file, or a shard of the index is missing), malformed_file (a broken file; an index that names a
    /// file outside the directory, or a tensor that its shard does not hold), io.
    [[nodiscard]] static result<safetensors_directory> open(const std::string& directory) {
        safetensors_directory out;
        out.directory_ = directory;
        auto single = safetensors_file::open(directory + "/model.safetensors");
        if (single) {
            out.files_.push_back(std::move(single).value());
        } else {
            if (single.error().code != errc::not_found) return std::move(single).error();
            FRUGAL_TRY(out.open_shards());
        }
        FRUGAL_TRY(out.index_tensors());
        return out;
    }

    [[nodiscard]] const std::string& name() const noexcept { return directory_; }
    /// The shards, in the order of their names.
    [[nodiscard]] std::span<const safetensors_file> files() const noexcept { return files_; }
    /// Tensors of all shards.
    [[nodiscard]] std::span<const safetensor* const> tensors() const noexcept { return tensors_; }
    /// The tensor, or null.
    [[nodiscard]] const safetensor* find(std::string_view tensor) const {
        const auto found = names_.find(tensor);
        return found == names_.end() ? nullptr : found->second;
    }
    /// The text of config.json. Errors: those of mapped_file::open.
    [[nodiscard]] result<std::string> config() const { return read_text("config.json"); }
    /// The text of another file of the directory, such as tokenizer.json. Errors: invalid_argument (not a plain file name), and
    /// those of mapped_file::open.
    [[nodiscard]] result<std::string> read_text(const std::string& file) const {
        if (!is_plain_name(file))
            return fail(errc::invalid_argument, printable(file), " is not the name of a file in ", directory_);
        FRUGAL_TRY_ASSIGN(const mapped_file mapping, mapped_file::open(directory_ + "/" + file));
        const auto bytes = mapping.bytes();
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }

private:
    static constexpr const char* index_name = "model.safetensors.index.json";

    safetensors_directory() = default;

    /// A name that stays in the directory: no separator, no "." or "..".
    [[nodiscard]] static bool is_plain_name(std::string_view file) noexcept {
        constexpr std::string_view forbidden{"/\\\0", 3};
        return !file.empty() && file != "." && file != ".." && file.find_first_of(forbidden) == std::string_view::npos;
    }

    template <class... Piece>
    [[nodiscard]] error malformed(const Piece&... piece) const {
        return fail(errc::malformed_file, directory_, "/", index_name, ": ", piece...);
    }

    [[nodiscard]] status open_shards() {
        auto text = read_text(index_name);
        if (!text && text.error().code == errc::not_found)
            return fail(errc::not_found, "neither model.safetensors nor ", index_name, " can be opened in ", directory_);
        FRUGAL_TRY(text);
        FRUGAL_TRY_ASSIGN(const nlohmann::json index, parse_json(*text, directory_ + "/" + index_name));
        const auto map = index.is_object() ? index.find("weight_map") : index.end();
        if (map == index.end() || !map->is_object()) return malformed("there is no object 'weight_map'");
        std::map<std::string, std::vector<const std::string*>> shards;
        for (auto item = map->begin(); item != map->end(); ++item) {
            const auto* file = item->get_ptr<const std::string*>();
            if (file == nullptr) return malformed("the file of tensor ", printable(item.key()), " is not a string");
            if (!is_plain_name(*file))
                return malformed("tensor ", printable(item.key()), " is said to lie in ", printable(*file),
                                 ", which is not the name of a file in the directory");
            shards[*file].push_back(&item.key());
        }
        for (const auto& [file, tensors] : shards) {
            FRUGAL_TRY_ASSIGN(safetensors_file shard, safetensors_file::open(directory_ + "/" + file));
            for (const auto* tensor : tensors)
                if (shard.find(*tensor) == nullptr)
                    return malformed("tensor ", printable(*tensor), " is said to lie in ", printable(file),
                                     ", which does not hold it");
            files_.push_back(std::move(shard));
        }
        return {};
    }

    [[nodiscard]] status index_tensors() {
        for (const auto& file : files_)
            for (const auto& tensor : file.tensors()) {
                if (!names_.emplace(tensor.name, &tensor).second)
                    return fail(errc::malformed_file, directory_, ": tensor ", printable(tensor.name), " lies in two shards");
                tensors_.push_back(&tensor);
            }
        return {};
    }

    std::string directory_;
    std::vector<safetensors_file> files_;
    std::vector<const safetensor*> tensors_;
    std::unordered_map<std::string_view, const safetensor*> names_;
};

}  // namespace io

FRUGAL_NAMESPACE_END

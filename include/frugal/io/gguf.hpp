#pragma once
/// Reads GGUF files (versions 2 and 3, little-endian): metadata and the table of tensors, over a memory map.
///
/// A file is taken to be hostile: every length, count and offset is checked against the file before it is used, and memory
/// stays proportional to the size of the file. Nothing of the file is copied: names, strings and tensors are views into it.
/// A model in several files (name-00001-of-00003.gguf, …) opens as one.
/// Format: docs/gguf.md of the ggml repository; of several files, llama.cpp's gguf-split.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf_metadata.hpp"
#include "frugal/io/gguf_types.hpp"
#include "frugal/io/mapped_file.hpp"
#include "frugal/io/printable.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

static_assert(std::endian::native == std::endian::little, "frugal: GGUF files are read in place, on little-endian machines only");

/// One row of the tensor table. `dims[0]` is the row length (ggml's `ne` order); dims beyond `n_dims` are 1.
struct FRUGAL_FLAGGED gguf_tensor {
    std::string_view name;
    quant::type_id type{};
    std::uint32_t n_dims = 0;
    std::array<std::uint64_t, 4> dims{1, 1, 1, 1};
    std::uint64_t offset = 0;  ///< from the start of its file's data section
    std::size_t part = 0;      ///< of a model in several files, which of them holds its bytes, counted from 0

    /// Product of the dims; it fits, the reader has checked.
    [[nodiscard]] std::uint64_t elements() const noexcept { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

/// How the name of part `number` (counted from 0) of `count` ends.
[[nodiscard]] FRUGAL_FLAGGED inline std::string gguf_part_ending(std::uint32_t number, std::uint32_t count) {
    const auto five_digits = [](std::uint32_t value) {
        const std::string digits = concat(value);
        return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
    };
    return concat("-", five_digits(number + 1), "-of-", five_digits(count), ".gguf");
}

/// The path of another part of the model whose one part is at `path`.
[[nodiscard]] FRUGAL_FLAGGED inline std::string gguf_part_name(const std::string& path, std::uint32_t number,
                                                               std::uint32_t count) {
    const std::string ending = gguf_part_ending(number, count);
    return path.substr(0, path.size() - (std::min)(path.size(), ending.size())) + ending;
}

/// An open GGUF file, or all files of one model. Move-only; views that it has given out stay valid when it moves and end with it.
class FRUGAL_FLAGGED gguf_file : public gguf_metadata {
public:
    /// Maps and checks the file. Where it is one of several (split.count), all of them open, whichever was given: their names
    /// differ in the number alone. Errors: those of mapped_file::open, of parse and of join; not_found names the part.
    [[nodiscard]] static result<gguf_file> open(const std::string& path) {
        FRUGAL_TRY_ASSIGN(gguf_file given, open_one(path));
        const std::uint32_t count = given.split_count_;
        if (count <= 1) return given;
        const auto part_name = [&](std::uint32_t number) { return gguf_part_name(path, number, count); };
        if (part_name(given.split_number_) != path)
            return fail(errc::invalid_argument, path, " is part ", given.split_number_ + 1, " of ", count,
                        "; for the others to be found its name must end in ", gguf_part_ending(given.split_number_, count));
        std::vector<gguf_file> parts;
        for (std::uint32_t i = 0; i < count; ++i) {
            auto part = i == given.split_number_ ? result<gguf_file>(std::move(given)) : open_one(part_name(i));
            if (!part) return fail(part.error().code, "part ", i + 1, " of ", count, ": ", part.error().message);
            parts.push_back(*std::move(part));
        }
        return join(std::move(parts));
    }

    /// Puts the files of one model together, in the order of their numbers. Metadata is the first one's.
    /// Errors: malformed_file (numbers, counts or architectures that do not belong together, a tensor that is there twice).
    [[nodiscard]] static result<gguf_file> join(std::vector<gguf_file> parts) {
        if (parts.empty()) return fail(errc::invalid_argument, "no part of a GGUF file");
        gguf_file whole = std::move(parts.front());
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const gguf_file& part = i == 0 ? whole : parts[i];
            if (part.split_number_ != i || part.split_count_ != parts.size())
                return part.malformed("part ", part.split_number_ + 1, " of ", part.split_count_, " stands where part ", i + 1,
                                      " of ", parts.size(), " belongs");
            FRUGAL_TRY(part.check_belongs_to(whole));
        }
        for (std::size_t i = 1; i < parts.size(); ++i) {
            gguf_file& part = parts[i];
            for (gguf_tensor& tensor : part.tensors_) {
                tensor.part = i;
                if (!whole.tensor_names_.emplace(tensor.name, whole.tensors_.size()).second)
                    return part.malformed("tensor ", printable(tensor.name), " is in an earlier part too");
                whole.tensors_.push_back(tensor);
            }
            whole.further_.push_back({std::move(part.mapping_), part.data()});
        }
        if (whole.split_tensors_ && *whole.split_tensors_ != whole.tensors_.size())
            return whole.malformed("its ", parts.size(), " parts hold ", whole.tensors_.size(),
                                   " tensors; split.tensors.count is ", *whole.split_tensors_);
        whole.joined_ = true;
        return whole;
    }

    /// Checks a file that already lies in memory; `bytes` must outlive the result. `name` stands in messages.
    /// Errors: malformed_file (what, and at which byte), unsupported (version 1, big-endian, nested arrays).
    [[nodiscard]] static result<gguf_file> parse(std::span<const std::byte> bytes, std::string name) {
        gguf_file file(bytes, std::move(name));
        FRUGAL_TRY(file.read());
        return file;
    }

    /// Whether all files of the model are here; false for what parse made of one of several.
    [[nodiscard]] bool is_whole() const noexcept { return split_count_ <= 1 || joined_; }

    [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
    [[nodiscard]] std::uint64_t alignment() const noexcept { return alignment_; }
    /// Where the data section starts; of several files, the first one's.
    [[nodiscard]] std::uint64_t data_offset() const noexcept { return data_start_; }
    [[nodiscard]] std::span<const gguf_tensor> tensors() const noexcept { return tensors_; }

    /// The tensor, or null.
    [[nodiscard]] const gguf_tensor* find(std::string_view tensor) const {
        const auto found = tensor_names_.find(tensor);
        return found == tensor_names_.end() ? nullptr : &tensors_[found->second];
    }

    /// Bytes that the tensor's blocks take. Errors: unsupported_format (a type number that is not known).
    [[nodiscard]] result<std::uint64_t> byte_size(const gguf_tensor& tensor) const {
        const auto* type = find_gguf_tensor_type(tensor.type);
        if (type == nullptr)
            return fail(errc::unsupported_format, name(), ": tensor ", printable(tensor.name), " has type ",
                        describe_gguf_type(tensor.type), ", whose block size is not known");
        return tensor.elements() / type->block_size * type->block_bytes;
    }

    /// The tensor's bytes. Errors: unsupported_format (a type number that is not known).
    [[nodiscard]] result<std::span<const std::byte>> bytes(const gguf_tensor& tensor) const {
        FRUGAL_TRY_ASSIGN(const std::uint64_t size, byte_size(tensor));
        return bytes(tensor, size);
    }

    /// `size` bytes from where the tensor starts: for types that only the caller knows. Errors: malformed_file (past the end).
    [[nodiscard]] result<std::span<const std::byte>> bytes(const gguf_tensor& tensor, std::uint64_t size) const {
        const std::span<const std::byte> whole = data_of(tensor.part);
        const std::uint64_t available = whole.size();
        if (tensor.offset > available || size > available - tensor.offset)
            return fail(errc::malformed_file, name(), ": tensor ", printable(tensor.name), " of ", size, " bytes at ",
                        tensor.offset, " goes past the end of the data section of ", available, " bytes");
        if (size == 0) return std::span<const std::byte>{};
        return whole.subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(size));
    }

private:
    static constexpr std::uint64_t longest_key = 65535;  // the format's own limit
    // The least bytes that an entry can take: key length, one byte of key, type, value; name length, one byte, dims, type,
    // offset.
    static constexpr std::uint64_t least_entry = 8 + 1 + 4 + 1, least_tensor = 8 + 1 + 4 + 4 + 8;

    /// A further file of the model: its bytes, where it was mapped, and its data section.
    struct further_part {
        mapped_file mapping;
        std::span<const std::byte> data;
    };

    gguf_file(std::span<const std::byte> bytes, std::string name) noexcept : gguf_metadata(bytes, std::move(name)) {}

    /// One file, whatever it says of others.
    [[nodiscard]] static result<gguf_file> open_one(const std::string& path) {
        FRUGAL_TRY_ASSIGN(mapped_file mapping, mapped_file::open(path));
        const auto bytes = mapping.bytes();
        FRUGAL_TRY_ASSIGN(gguf_file file, parse(bytes, path));
        file.mapping_ = std::move(mapping);
        return file;
    }

    // Reading ------------------------------------------------------------------------------------------------------------

    [[nodiscard]] std::uint64_t remaining() const noexcept { return file_bytes().size() - position_; }
    [[nodiscard]] std::span<const std::byte> data() const noexcept {
        return data_start_ < file_bytes().size() ? file_bytes().subspan(static_cast<std::size_t>(data_start_))
                                                 : std::span<const std::byte>{};
    }
    [[nodiscard]] std::span<const std::byte> data_of(std::size_t part) const noexcept {
        if (part == 0) return data();
        return part <= further_.size() ? further_[part - 1].data : std::span<const std::byte>{};
    }

    template <class T>
    [[nodiscard]] status take(T& value, std::string_view what) {
        if (remaining() < sizeof(T))
            return malformed("the file ends at byte ", file_bytes().size(), " inside ", what, ", which starts at byte ",
                             position_);
        value = load<T>(position_);
        position_ += sizeof(T);
        return {};
    }

    [[nodiscard]] status take_string(std::string_view& value, std::string_view what) {
        const std::uint64_t start = position_;
        std::uint64_t length = 0;
        FRUGAL_TRY(take(length, what));
        if (length > remaining())
            return malformed(what, " at byte ", start, " claims ", length, " bytes where the file has ", remaining(), " left");
        value = text(position_, length);
        position_ += length;
        return {};
    }

    [[nodiscard]] status read() {
        if (file_bytes().size() < 4 || text(0, 4) != "GGUF")
            return malformed("not a GGUF file: the first four bytes are not 'GGUF'");
        position_ = 4;
        FRUGAL_TRY(take(version_, "the version"));
        if ((version_ & 0xFFFFu) == 0 && version_ != 0)
            return fail(errc::unsupported, name(), ": a big-endian GGUF file; only little-endian files can be read");
        if (version_ != 2 && version_ != 3)
            return fail(errc::unsupported, name(), ": GGUF version ", version_, "; only versions 2 and 3 can be read");
        std::uint64_t tensor_count = 0, entry_count = 0;
        FRUGAL_TRY(take(tensor_count, "the tensor count"));
        FRUGAL_TRY(take(entry_count, "the metadata count"));
        if (entry_count > remaining() / least_entry)
            return malformed("the header claims ", entry_count, " metadata entries; the file of ", file_bytes().size(),
                             " bytes cannot hold them");
        if (tensor_count > remaining() / least_tensor)
            return malformed("the header claims ", tensor_count, " tensors; the file of ", file_bytes().size(),
                             " bytes cannot hold them");
        for (std::uint64_t i = 0; i < entry_count; ++i) FRUGAL_TRY(read_entry(i));
        FRUGAL_TRY(read_alignment());
        FRUGAL_TRY(read_split());
        for (std::uint64_t i = 0; i < tensor_count; ++i) FRUGAL_TRY(read_tensor(i));
        data_start_ = (position_ + alignment_ - 1) / alignment_ * alignment_;
        return check_placement();
    }

    [[nodiscard]] status read_entry(std::uint64_t index) {
        const std::uint64_t start = position_;
        gguf_entry entry;
        FRUGAL_TRY(take_string(entry.key, "a metadata key"));
        if (entry.key.empty() || entry.key.size() > longest_key)
            return malformed("metadata key ", index, " at byte ", start, " has ", entry.key.size(), " bytes; 1 to ", longest_key,
                             " are allowed");
        std::uint32_t type = 0;
        FRUGAL_TRY(take(type, "a metadata type"));
        if (type >= gguf_value_type_count)
            return malformed("metadata key ", printable(entry.key), " has unknown type ", type, " (byte ", position_ - 4, ")");
        entry.type = entry.element_type = static_cast<gguf_value_type>(type);
        FRUGAL_TRY(skip_value(entry));
        if (!add(entry)) return malformed("metadata key ", printable(entry.key), " occurs twice; the second is at byte ", start);
        return {};
    }

    /// Checks the value at the current position, notes where it lies, and steps over it.
    [[nodiscard]] status skip_value(gguf_entry& entry) {
        if (entry.type == gguf_value_type::string) {
            std::string_view value;
            FRUGAL_TRY(take_string(value, concat("the value of metadata key ", printable(entry.key))));
            entry.count = value.size();
            entry.offset = position_ - value.size();
            return {};
        }
        if (entry.type == gguf_value_type::array) {
            std::uint32_t element = 0;
            FRUGAL_TRY(take(element, "an array's element type"));
            if (element >= gguf_value_type_count)
                return malformed("array ", printable(entry.key), " has unknown element type ", element, " (byte ", position_ - 4,
                                 ")");
            entry.element_type = static_cast<gguf_value_type>(element);
            if (entry.element_type == gguf_value_type::array)
                return fail(errc::unsupported, name(), ": metadata key ", printable(entry.key), " is an array of arrays (byte ",
                            position_ - 4, ")");
            FRUGAL_TRY(take(entry.count, "an array's length"));
        }
        const bool strings = entry.element_type == gguf_value_type::string;
        const std::uint64_t least = strings ? 8 : size_of(entry.element_type);
        if (entry.count > remaining() / least)
            return malformed("metadata key ", printable(entry.key), " at byte ", position_, " claims ", entry.count,
                             " values of type ", to_string(entry.element_type), "; the file has ", remaining(), " bytes left");
        entry.offset = position_;
        if (strings) {
            for (std::uint64_t i = 0; i < entry.count; ++i) {
                const std::uint64_t start = position_;
                std::uint64_t length = 0;
                FRUGAL_TRY(take(length, "a string of an array"));
                if (length > remaining())
                    return malformed("string ", i, " of metadata key ", printable(entry.key), " at byte ", start, " claims ",
                                     length, " bytes where the file has ", remaining(), " left");
                position_ += length;
            }
            return {};
        }
        position_ += entry.count * least;
        if (entry.element_type == gguf_value_type::boolean)
            for (std::uint64_t at = entry.offset; at < position_; ++at)
                if (load<std::uint8_t>(at) > 1)
                    return malformed("metadata key ", printable(entry.key), " holds a bool that is neither 0 nor 1 at byte ", at);
        return {};
    }

    [[nodiscard]] status read_alignment() {
        constexpr std::string_view key = "general.alignment";
        if (!has(key)) return {};
        FRUGAL_TRY_ASSIGN(const std::uint32_t value, u32(key));
        if (!std::has_single_bit(value)) return malformed(key, " is ", value, "; it must be a power of two");
        alignment_ = value;
        return {};
    }

    [[nodiscard]] status read_split() {
        FRUGAL_TRY_ASSIGN(split_count_, u32_or("split.count", 1));
        FRUGAL_TRY_ASSIGN(split_number_, u32_or("split.no", 0));
        if (split_count_ > most_parts)
            return malformed("split.count is ", split_count_, "; at most ", most_parts, " are allowed");
        if (split_count_ > 1 && split_number_ >= split_count_)
            return malformed("split.no is ", split_number_, " in a model of ", split_count_, " files");
        if (!has("split.tensors.count")) return {};
        FRUGAL_TRY_ASSIGN(split_tensors_, u64("split.tensors.count"));
        return {};
    }

    /// Of several files: what both say of the model is the same.
    [[nodiscard]] status check_belongs_to(const gguf_file& first) const {
        if (split_tensors_ != first.split_tensors_)
            return malformed("its split.tensors.count differs from that of ", first.name(),
                             ": they are parts of different models");
        constexpr std::string_view key = "general.architecture";
        if (!has(key)) return {};
        FRUGAL_TRY_ASSIGN(const std::string_view mine, string(key));
        FRUGAL_TRY_ASSIGN(const std::string_view theirs, first.string_or(key, {}));
        if (mine != theirs)
            return malformed("its architecture ", printable(mine), " is not ", printable(theirs), ", which ", first.name(),
                             " has: they are parts of different models");
        return {};
    }

    [[nodiscard]] status read_tensor(std::uint64_t index) {
        const std::uint64_t start = position_;
        gguf_tensor tensor;
        FRUGAL_TRY(take_string(tensor.name, "a tensor name"));
        if (tensor.name.empty()) return malformed("tensor ", index, " at byte ", start, " has an empty name");
        FRUGAL_TRY(take(tensor.n_dims, "a tensor's number of dimensions"));
        if (tensor.n_dims > tensor.dims.size())
            return malformed("tensor ", printable(tensor.name), " has ", tensor.n_dims,
                             " dimensions; at most 4 are allowed (byte ", position_ - 4, ")");
        std::uint64_t elements = 1;
        bool empty = false;
        for (std::uint32_t i = 0; i < tensor.n_dims; ++i) {
            FRUGAL_TRY(take(tensor.dims[i], "a tensor's dimensions"));
            // A zero must not hide the overflow of the others, nor the order of the dims matter.
            empty = empty || tensor.dims[i] == 0;
            if (tensor.dims[i] > most_elements / elements)
                return malformed("the dimensions of tensor ", printable(tensor.name), " overflow (byte ", position_ - 8, ")");
            elements *= std::max<std::uint64_t>(tensor.dims[i], 1);
        }
        std::uint32_t type = 0;
        FRUGAL_TRY(take(type, "a tensor's type"));
        tensor.type = quant::type_id{type};
        FRUGAL_TRY(take(tensor.offset, "a tensor's offset"));
        if (tensor.offset % alignment_ != 0)
            return malformed("tensor ", printable(tensor.name), " lies at offset ", tensor.offset,
                             ", not a multiple of the alignment ", alignment_);
        if (const auto* known = find_gguf_tensor_type(tensor.type)) {
            if (tensor.dims[0] % known->block_size != 0)
                return malformed("rows of tensor ", printable(tensor.name), " hold ", tensor.dims[0], " elements; type ",
                                 known->name, " needs a multiple of ", known->block_size);
            if (!empty && elements / known->block_size > most_elements / known->block_bytes)
                return malformed("the size of tensor ", printable(tensor.name), " overflows");
        }
        if (!tensor_names_.emplace(tensor.name, tensors_.size()).second)
            return malformed("tensor ", printable(tensor.name), " occurs twice; the second is at byte ", start);
        tensors_.push_back(tensor);
        return {};
    }

    /// Every tensor lies inside the data section, and no two share a byte.
    [[nodiscard]] status check_placement() const {
        struct extent {
            std::uint64_t begin, size;
            const gguf_tensor* tensor;
        };
        std::vector<extent> extents;
        extents.reserve(tensors_.size());
        for (const auto& tensor : tensors_) {
            const bool known = find_gguf_tensor_type(tensor.type) != nullptr;
            const std::uint64_t size = known ? *byte_size(tensor) : tensor.elements() == 0 ? 0 : 1;
            FRUGAL_TRY(check_inside(tensor, size));
            if (size != 0) extents.push_back({tensor.offset, size, &tensor});
        }
        std::sort(extents.begin(), extents.end(), [](const extent& a, const extent& b) { return a.begin < b.begin; });
        for (std::size_t i = 1; i < extents.size(); ++i)
            if (extents[i].begin - extents[i - 1].begin < extents[i - 1].size)
                return malformed("tensors ", printable(extents[i - 1].tensor->name), " and ", printable(extents[i].tensor->name),
                                 " overlap at offset ", extents[i].begin);
        return {};
    }
    [[nodiscard]] status check_inside(const gguf_tensor& tensor, std::uint64_t size) const {
        if (auto inside = bytes(tensor, size); !inside) return std::move(inside).error();
        return {};
    }

    static constexpr std::uint32_t most_parts = 65535;  // split.count is a u16
    static constexpr std::uint64_t most_elements = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());

    mapped_file mapping_;
    std::uint32_t version_ = 0;
    std::uint64_t position_ = 0, alignment_ = 32, data_start_ = 0;
    std::vector<gguf_tensor> tensors_;
    std::unordered_map<std::string_view, std::size_t> tensor_names_;
    std::uint32_t split_count_ = 1, split_number_ = 0;
    std::optional<std::uint64_t> split_tensors_;
    bool joined_ = false;
    std::vector<further_part> further_;
};

}  // namespace io

FRUGAL_NAMESPACE_END

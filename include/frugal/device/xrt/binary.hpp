#pragma once
/// Checking a device program before it is loaded. XRT accepts truncated files and kernels for any shape; we do not (C61).
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/xrt/compat.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace device {

/// The tag of a binary: the line of text in its USER_METADATA section (xclbinutil --add-section USER_METADATA:RAW:file), such as
/// `frugal-tile-matmul 1 tile=q4nx:32x256:5120 tokens=8 activations=bf16 output=f32`.
struct FRUGAL_FLAGGED xrt_tag {
    std::string tile;         ///< name, shape and bytes of the weight tiles
    std::size_t tokens = 0;   ///< rows of activations of one launch
    std::size_t rows = 0;     ///< rows of the weights, whole tiles; 0: any, by instruction stream or argument
    std::size_t columns = 0;  ///< columns of the weights, whole tiles; 0: any
};

namespace detail {

inline constexpr std::string_view xrt_tag_head = "frugal-tile-matmul 1";

/// The bytes of the options' binary. Errors: invalid_argument, io.
[[nodiscard]] inline result<std::vector<char>> read_xrt_binary(const std::string& path) {
    if (path.empty()) return fail(errc::invalid_argument, "no device program: set binary or path of xrt_options");
    std::ifstream file(path, std::ios::binary);
    if (!file) return fail(errc::io, "cannot open the device program ", path);
    std::vector<char> out((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (file.bad()) return fail(errc::io, "cannot read the device program ", path);
    return out;
}

/// A section's bytes; empty where there is none. Errors: malformed_file for what is no whole binary.
[[nodiscard]] inline result<std::string_view> xrt_section(std::span<const char> binary, axlf_section_kind kind) {
    axlf top{};
    if (binary.size() < sizeof top)
        return fail(errc::malformed_file, "a device program of ", binary.size(), " bytes is no xclbin");
    std::memcpy(&top, binary.data(), sizeof top);
    if (std::memcmp(top.m_magic, "xclbin2", 7) != 0) return fail(errc::malformed_file, "the device program is no xclbin");
    if (top.m_header.m_length != binary.size())
        return fail(errc::malformed_file, "the xclbin says that it has ", std::uint64_t{top.m_header.m_length},
                    " bytes, but there are ", binary.size());
    const std::size_t count = top.m_header.m_numSections, heads = offsetof(axlf, m_sections);
    if (count > (binary.size() - heads) / sizeof(axlf_section_header))
        return fail(errc::malformed_file, "the xclbin's list of ", count, " sections reaches beyond its end");
    std::string_view found;
    for (std::size_t i = 0; i < count; ++i) {
        axlf_section_header head{};
        std::memcpy(&head, binary.data() + heads + i * sizeof head, sizeof head);
        if (head.m_sectionOffset > binary.size() || head.m_sectionSize > binary.size() - head.m_sectionOffset)
            return fail(errc::malformed_file, "section ", i, " of the xclbin reaches beyond its end");
        if (head.m_sectionKind == static_cast<std::uint32_t>(kind))
            found = std::string_view(binary.data() + head.m_sectionOffset, head.m_sectionSize);
    }
    return found;
}

/// The tag of a binary. Errors: malformed_file.
[[nodiscard]] inline result<xrt_tag> read_xrt_tag(std::span<const char> binary) {
    FRUGAL_TRY_ASSIGN(std::string_view text, xrt_section(binary, USER_METADATA));
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
    if (!text.starts_with(xrt_tag_head) || (text.size() > xrt_tag_head.size() && text[xrt_tag_head.size()] != ' '))
        return fail(errc::malformed_file, "the xclbin's tag must begin with `", xrt_tag_head, "`, but ",
                    text.empty() ? std::string("it has none") : concat("is `", text.substr(0, 80), "`"));
    xrt_tag out;
    std::string_view activations = "bf16", output = "f32";
    std::string_view rest = text.substr(xrt_tag_head.size());
    while (!rest.empty()) {
        const std::size_t begin = rest.find_first_not_of(' ');
        if (begin == std::string_view::npos) break;
        const std::size_t end = (std::min)(rest.find(' ', begin), rest.size());
        const std::string_view word = rest.substr(begin, end - begin);
        rest.remove_prefix(end);
        const std::size_t equals = (std::min)(word.find('='), word.size());
        const std::string_view key = word.substr(0, equals), value = word.substr((std::min)(equals + 1, word.size()));
        if (key == "tile") out.tile = std::string(value);
        if (key == "activations") activations = value;
        if (key == "output") output = value;
        for (const auto& [name, number] : {std::pair<std::string_view, std::size_t*>{"tokens", &out.tokens},
                                           std::pair<std::string_view, std::size_t*>{"rows", &out.rows},
                                           std::pair<std::string_view, std::size_t*>{"columns", &out.columns}}) {
            if (key != name) continue;
            const auto [stop, problem] = std::from_chars(value.data(), value.data() + value.size(), *number);
            if (problem != std::errc() || stop != value.data() + value.size() || *number > (std::size_t{1} << 31))
                return fail(errc::malformed_file, "the xclbin's tag says ", word, ", which is no number");
        }
    }
    if (out.tokens == 0 || out.tokens > 65536)
        return fail(errc::malformed_file, "the xclbin's tag must say tokens=1 … 65536: `", text, "`");
    if (activations != "bf16" || output != "f32")
        return fail(errc::unsupported, "the xclbin was built for activations of ", activations, " and results of ", output,
                    "; this device gives bf16 and takes f32");
    return out;
}

/// The binary's id as 32 hexadecimal digits. Precondition: xrt_section accepted the binary.
[[nodiscard]] inline std::string xrt_binary_id(std::span<const char> binary) {
    axlf top{};
    std::memcpy(&top, binary.data(), sizeof top);
    std::string out;
    for (const unsigned char byte : top.m_header.uuid) {
        out += "0123456789abcdef"[byte >> 4];
        out += "0123456789abcdef"[byte & 15];
    }
    return out;
}

/// Whether two ids are the same, hyphens and case aside.
[[nodiscard]] inline bool same_xrt_id(std::string_view a, std::string_view b) {
    const auto plain = [](std::string_view id) {
        std::string out;
        for (const char c : id)
            if (c != '-') out += c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
        return out;
    };
    return plain(a) == plain(b);
}

}  // namespace detail
}  // namespace device

FRUGAL_NAMESPACE_END

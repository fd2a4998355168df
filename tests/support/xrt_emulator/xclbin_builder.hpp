#pragma once
/// Builds the smallest binary that XRT accepts, in memory: signatures of the kernels, one memory bank, compute units, and which
/// argument may use which bank. `tag` adds a text section, as `xclbinutil --add-section USER_METADATA:RAW:file` does.
#include <xclbin.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "xrt_emulator/kernel_spec.hpp"

namespace xrt_emulator {

class xclbin_builder {
public:
    xclbin_builder& add(kernel_spec kernel) {
        kernels_.push_back(std::move(kernel));
        return *this;
    }
    xclbin_builder& tag(std::string text) {
        tag_ = std::move(text);
        return *this;
    }
    /// Binaries that differ must have different ids: XRT compares nothing else.
    xclbin_builder& id(std::array<unsigned char, 16> id) {
        id_ = id;
        return *this;
    }

    [[nodiscard]] std::vector<char> build() const {
        struct section {
            axlf_section_kind kind;
            const char* name;
            std::vector<char> data;
        };
        const std::string xml = metadata();
        std::vector<section> sections{{EMBEDDED_METADATA, "metadata", {xml.begin(), xml.end()}},
                                      {MEM_TOPOLOGY, "memory", memory()},
                                      {IP_LAYOUT, "units", compute_units()},
                                      {CONNECTIVITY, "connections", connections()}};
        if (!tag_.empty()) sections.push_back({USER_METADATA, "tag", {tag_.begin(), tag_.end()}});

        std::vector<char> out(aligned(offsetof(axlf, m_sections) + sections.size() * sizeof(axlf_section_header)), 0);
        std::vector<axlf_section_header> heads;
        for (const section& one : sections) {
            axlf_section_header head{};
            head.m_sectionKind = one.kind;
            std::strncpy(head.m_sectionName, one.name, sizeof head.m_sectionName - 1);
            head.m_sectionOffset = out.size();
            head.m_sectionSize = one.data.size();
            heads.push_back(head);
            out.insert(out.end(), one.data.begin(), one.data.end());
            out.resize(aligned(out.size()), 0);
        }

        axlf top{};
        std::memcpy(top.m_magic, "xclbin2", 8);
        top.m_signature_length = -1;  // unsigned
        std::memset(top.reserved, 0xFF, sizeof top.reserved);
        top.m_header.m_length = out.size();
        top.m_header.m_versionMajor = 2;
        top.m_header.m_versionMinor = 1;
        top.m_header.m_mode = XCLBIN_FLAT;
        std::strncpy(reinterpret_cast<char*>(top.m_header.m_platformVBNV), "emulated:npu:test:1.0",
                     sizeof top.m_header.m_platformVBNV - 1);
        std::memcpy(top.m_header.uuid, id_.data(), id_.size());
        top.m_header.m_numSections = static_cast<std::uint32_t>(sections.size());
        std::memcpy(out.data(), &top, offsetof(axlf, m_sections));
        std::memcpy(out.data() + offsetof(axlf, m_sections), heads.data(), heads.size() * sizeof(axlf_section_header));
        return out;
    }

private:
    static std::size_t aligned(std::size_t n) { return (n + 7) / 8 * 8; }

    /// XRT's section structs are a count and an array declared with one row; `rows_at` is where the array begins.
    template <class Section, class Row>
    static std::vector<char> counted(const std::vector<Row>& rows, std::size_t rows_at) {
        std::vector<char> out(std::max(sizeof(Section), rows_at + rows.size() * sizeof(Row)), 0);
        const auto count = static_cast<std::int32_t>(rows.size());
        std::memcpy(out.data(), &count, sizeof count);
        if (!rows.empty()) std::memcpy(out.data() + rows_at, rows.data(), rows.size() * sizeof(Row));
        return out;
    }

    static std::vector<char> memory() {
        mem_data bank{};
        bank.m_type = MEM_DDR4;
        bank.m_used = 1;
        bank.m_size = 4u * 1024 * 1024;  // in KiB
        std::strncpy(reinterpret_cast<char*>(bank.m_tag), "HOST", sizeof bank.m_tag - 1);
        return counted<mem_topology>(std::vector<mem_data>{bank}, offsetof(mem_topology, m_mem_data));
    }

    static constexpr std::uint64_t unit_range = 0x10000;

    [[nodiscard]] std::vector<char> compute_units() const {
        std::vector<ip_data> rows;
        for (const kernel_spec& kernel : kernels_)
            for (unsigned i = 1; i <= kernel.instances; ++i) {
                const std::string name = kernel.name + ":" + kernel.name + "_" + std::to_string(i);
                ip_data unit{};
                if (name.size() >= sizeof unit.m_name) throw std::invalid_argument("kernel name too long: " + name);
                unit.m_type = IP_KERNEL;
                unit.properties = AP_CTRL_HS << IP_CONTROL_SHIFT;
                unit.m_base_address = unit_range * (rows.size() + 1);
                std::memcpy(unit.m_name, name.c_str(), name.size() + 1);
                rows.push_back(unit);
            }
        return counted<ip_layout>(rows, offsetof(ip_layout, m_ip_data));
    }

    [[nodiscard]] std::vector<char> connections() const {
        std::vector<connection> rows;
        std::int32_t unit = 0;
        for (const kernel_spec& kernel : kernels_)
            for (unsigned i = 0; i < kernel.instances; ++i, ++unit)
                for (std::size_t a = 0; a < kernel.arguments.size(); ++a)
                    if (kernel.arguments[a].kind == argument_kind::buffer)
                        rows.push_back({static_cast<std::int32_t>(a), unit, 0});
        return counted<connectivity>(rows, offsetof(connectivity, m_connection));
    }

    [[nodiscard]] std::string metadata() const {
        const auto attribute = [](const char* name, const std::string& value) {
            return std::string(" ") + name + "=\"" + value + "\"";
        };
        const auto number = [](std::uint64_t value) { return std::to_string(value); };
        std::string out =
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<project name=\"emulated\">"
            "<platform vendor=\"emulated\" boardid=\"test\" name=\"npu\"><device name=\"fpga0\" fpgaDevice=\"emulated\">"
            "<core name=\"core0\" target=\"hw\" type=\"clc_region\">\n";
        std::uint64_t base = unit_range;
        for (const kernel_spec& kernel : kernels_) {
            out += "<kernel" + attribute("name", kernel.name) + " language=\"c\" type=\"dpu\">\n" +
                   "<port name=\"S_AXI\" mode=\"slave\" range=\"0x10000\" dataWidth=\"32\"/>\n";
            const auto offsets = kernel.offsets();
            for (std::size_t a = 0; a < kernel.arguments.size(); ++a) {
                const argument_spec& argument = kernel.arguments[a];
                const bool is_buffer = argument.kind == argument_kind::buffer;
                out += "<arg" + attribute("name", argument.name) + attribute("addressQualifier", is_buffer ? "1" : "0") +
                       attribute("id", number(a)) + attribute("port", is_buffer ? "M_AXI" : "S_AXI") +
                       attribute("size", number(argument.bytes)) + attribute("offset", number(offsets[a])) +
                       attribute("hostOffset", "0") + attribute("hostSize", number(argument.bytes)) +
                       attribute("type", argument.type) + "/>\n";
            }
            for (unsigned i = 1; i <= kernel.instances; ++i, base += unit_range)
                out += "<instance" + attribute("name", kernel.name + "_" + number(i)) + "><addrRemap" +
                       attribute("base", number(base)) + " range=\"0x10000\" port=\"S_AXI\"/></instance>\n";
            out += "</kernel>\n";
        }
        return out + "</core></device></platform></project>\n";
    }

    std::vector<kernel_spec> kernels_;
    std::string tag_;
    std::array<unsigned char, 16> id_{0xF0, 0x0D, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1};
};

}  // namespace xrt_emulator

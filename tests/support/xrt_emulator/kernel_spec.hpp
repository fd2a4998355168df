#pragma once
/// What an emulated kernel looks like from outside. One description feeds both sides of a test: the metadata of the binary
/// (xclbin_builder.hpp) and the decoder of the start packets that XRT sends (device.hpp).
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace xrt_emulator {

enum class argument_kind : std::uint8_t {
    scalar = 0,  // its value stands in the register map
    buffer = 1,  // the register map holds the 64-bit device address
};

struct argument_spec {
    std::string name;
    argument_kind kind = argument_kind::buffer;
    std::uint32_t bytes = 8;  // in the register map
    std::string type = "void*";
};

inline argument_spec buffer_argument(std::string name) { return {std::move(name)}; }
inline argument_spec u32_argument(std::string name) { return {std::move(name), argument_kind::scalar, 4, "uint"}; }
inline argument_spec u64_argument(std::string name) { return {std::move(name), argument_kind::scalar, 8, "uint64_t"}; }
inline argument_spec f32_argument(std::string name) { return {std::move(name), argument_kind::scalar, 4, "float"}; }

struct kernel_spec {
    std::string name;
    std::vector<argument_spec> arguments;
    unsigned instances = 1;  // compute units

    /// Where each argument lies in the register map: one after the other, each aligned to 8 bytes, as in the binaries of NPUs.
    [[nodiscard]] std::vector<std::uint32_t> offsets() const {
        std::vector<std::uint32_t> out;
        std::uint32_t at = 0;
        for (const argument_spec& argument : arguments) {
            out.push_back(at);
            at += (argument.bytes + 7u) / 8u * 8u;
        }
        return out;
    }
};

}  // namespace xrt_emulator

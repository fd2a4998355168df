#pragma once
/// How a sequence of model::cuda_decoder is saved: a header, then the bytes of its segments as they are on the device.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "frugal/attention/recurrent_cuda.hpp"
#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// What stands before the bytes; how many these are follows from the model and the length.
struct FRUGAL_FLAGGED cuda_sequence_header {
    static constexpr std::uint64_t expected_magic = 0x31'65'74'61'74'73'63'66;  // "fcstate1", the format's version at its end

    std::uint64_t magic = expected_magic;
    std::uint64_t model = 0;       ///< model::fingerprint
    std::uint64_t precisions = 0;  ///< of keys and values, of the indexer's keys: attention::scalar_code
    std::uint64_t length = 0;      ///< tokens

    cuda_sequence_header() noexcept = default;
    cuda_sequence_header(std::uint64_t of, std::uint64_t scalars, std::uint64_t tokens) noexcept
        : model(of), precisions(scalars), length(tokens) {}

    /// Whether such a sequence can be loaded. Errors: malformed_file, shape_mismatch, context_overflow.
    [[nodiscard]] status check(std::uint64_t of, std::uint64_t scalars, std::size_t max_tokens) const {
        if (magic != expected_magic)
            return fail(errc::malformed_file, "these bytes are not a sequence saved by a decoder on a GPU of this version");
        if (model != of)
            return fail(errc::shape_mismatch,
                        "the saved sequence belongs to another model: architecture, head order or sizes differ");
        if (precisions != scalars)
            return fail(errc::shape_mismatch, "the saved sequence has keys, values or indexer keys of another precision");
        if (length > max_tokens)
            return fail(errc::context_overflow, "saved sequence of ", length, " tokens is beyond the ", max_tokens,
                        " that a sequence may hold");
        return {};
    }
};

/// Errors: malformed_file (one of the segments' tokens is not in the vocabulary).
[[nodiscard]] inline status check_saved_tokens(std::span<const attention::cuda_segment> segments,
                                               std::span<const std::byte> bytes, std::size_t vocabulary) {
    for (const attention::cuda_segment& each : segments) {
        for (std::size_t at = 0; each.tokens && at < each.bytes; at += sizeof(std::int64_t)) {
            std::int64_t token = 0;
            std::memcpy(&token, bytes.data() + at, sizeof(token));
            if (static_cast<std::uint64_t>(token) >= vocabulary)  // nor below 0
                return fail(errc::malformed_file, "saved token ", token, " is not in the vocabulary of ", vocabulary);
        }
        bytes = bytes.subspan(each.bytes);
    }
    return {};
}

}  // namespace model

FRUGAL_NAMESPACE_END

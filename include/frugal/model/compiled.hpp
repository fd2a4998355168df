#pragma once
/// A model of any supported architecture behind one class without templates. The library frugal::models has its code.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/executor.hpp"
#include "frugal/model/token_batch.hpp"
#include "frugal/tensor/view.hpp"

FRUGAL_NAMESPACE_BEGIN

enum class counter : std::uint8_t;  // core/counters.hpp, which costs more to parse than this header

namespace model {

/// What a compiled model is, as its file says.
struct FRUGAL_FLAGGED compiled_sizes {
    std::string architecture;  ///< GGUF name: qwen35, qwen35moe, qwen4exp
    std::size_t vocabulary = 0, hidden = 0, layers = 0, context_length = 0;
    std::vector<std::int32_t> eos;  ///< tokens that end a text
};

struct FRUGAL_FLAGGED compiled_options {
    state_options state{};                                ///< sequences, tokens of each, checkpoints
    std::optional<std::size_t> qsa_ratio = std::nullopt;  ///< compression of QSA's keys, where the file does not say it
    bool check_tensors = false;                           ///< look at all weights for values that are not finite
    /// Bytes of weight images of each kind of layer, and of all routed experts together; what is beyond is read from the file.
    std::size_t byte_budget = (std::numeric_limits<std::size_t>::max)();
    std::size_t expert_byte_budget = (std::numeric_limits<std::size_t>::max)();
    /// Called with (done, total) bytes of the file while its weights are packed; may be empty.
    std::function<void(std::uint64_t, std::uint64_t)> progress = nullptr;
};

/// One loaded model and the state of its sequences, as transformer<Spec, Convention, policies<device::packed_cpu<Isa>>> computes
/// it with all formats and activations in 8 bits: the same bits. Not for calls from several threads at once.
class FRUGAL_FLAGGED compiled_model {
public:
    compiled_model() = default;
    compiled_model(const compiled_model&) = delete;
    compiled_model& operator=(const compiled_model&) = delete;
    virtual ~compiled_model() = default;

    /// Opens a GGUF file, or a directory with config.json and safetensors, and packs its weights for the instruction set that
    /// this machine, or the environment variable FRUGAL_ISA, chooses among those that the library was built for.
    /// `threads` must outlive the model; the default computes in the thread that calls.
    /// Errors: those of opening and reading files, unsupported, invalid_argument, out_of_memory.
    [[nodiscard]] static result<std::unique_ptr<compiled_model>> load(const std::string& path,
                                                                      const compiled_options& options = {},
                                                                      device::executor_ref threads = {});

    [[nodiscard]] virtual const compiled_sizes& sizes() const noexcept = 0;
    /// Instruction set of the kernels.
    [[nodiscard]] virtual std::string_view isa() const noexcept = 0;

    /// As transformer::forward: appends the batch's tokens to their sequences and writes the wanted rows of logits.
    /// logits: [batch.logit_rows.size(), vocabulary].
    [[nodiscard]] virtual status forward(const token_batch& input, matrix_view<float> logits) = 0;

    /// Tokens held by a sequence; the sequences are 0 to options.state.sequences - 1.
    [[nodiscard]] virtual std::size_t length(attention::sequence_id s) const = 0;
    /// Makes a sequence empty and usable, whatever it held before.
    virtual void clear(attention::sequence_id s) = 0;
    /// Undoes the last n tokens, or changes nothing. Errors: cannot_rollback, invalid_argument.
    [[nodiscard]] virtual status rollback(attention::sequence_id s, std::size_t n) = 0;
    /// Errors: invalid_argument, unsupported (drafted tokens wait for a verdict).
    [[nodiscard]] virtual status copy(attention::sequence_id from, attention::sequence_id to) = 0;
    /// The tokens that follow are drafts, of which accept() keeps the first n. Errors: as of combined_state.
    [[nodiscard]] virtual status begin_draft(attention::sequence_id s) = 0;
    [[nodiscard]] virtual status accept(attention::sequence_id s, std::size_t n) = 0;
    /// A sequence as bytes, for load_sequence of the same model with any options. Errors: invalid_argument.
    [[nodiscard]] virtual result<std::vector<std::byte>> save_sequence(attention::sequence_id s) const = 0;
    /// Errors leave the sequence as it was: malformed_file, shape_mismatch, context_overflow, out_of_memory.
    [[nodiscard]] virtual status load_sequence(attention::sequence_id s, std::span<const std::byte> saved) = 0;

    /// What was counted since the model was loaded: loads skipped, images packed, activations quantised and so on.
    [[nodiscard]] virtual std::uint64_t counted(counter which) const noexcept = 0;
    /// Bytes of weight images that are in memory.
    [[nodiscard]] virtual std::size_t image_bytes() const noexcept = 0;
};

}  // namespace model

FRUGAL_NAMESPACE_END

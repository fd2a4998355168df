#pragma once
/// A model of any supported kind behind one run-time interface: what a program that takes a file name needs.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frugal/attention/batch.hpp"
#include "frugal/core/counters.hpp"
#include "frugal/core/error.hpp"
#include "frugal/device/cpu/executor.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/token_batch.hpp"
#include "frugal/model/weight_store.hpp"
#include "frugal/tensor/view.hpp"

namespace runner {

struct model_file;

struct engine_options {
    std::size_t sequences = 1;
    std::size_t max_tokens = 0;  ///< a sequence; 0: what the model was trained for
    std::size_t checkpoints = 0;
    std::optional<std::size_t> qsa_ratio;
    bool check_tensors = false;
    /// Of make_engine: weights straight from the file and activations as they are, where images and 8 bits would be faster.
    bool exact = false;
    frugal::model::weight_store_options images{};  ///< for devices that keep weight images
};

/// One loaded model and the state of its sequences.
class engine {
public:
    engine() = default;
    engine(const engine&) = delete;
    engine& operator=(const engine&) = delete;
    virtual ~engine() = default;

    [[nodiscard]] virtual const frugal::model::config& sizes() const = 0;
    /// Instruction set of the kernels.
    [[nodiscard]] virtual std::string_view isa() const = 0;
    [[nodiscard]] virtual std::string_view device() const = 0;
    /// See frugal::model::transformer::forward.
    [[nodiscard]] virtual frugal::status forward(const frugal::model::token_batch& input, frugal::matrix_view<float> logits) = 0;
    [[nodiscard]] virtual std::size_t length(frugal::attention::sequence_id s) const = 0;
    virtual void clear(frugal::attention::sequence_id s) = 0;
    [[nodiscard]] virtual frugal::status rollback(frugal::attention::sequence_id s, std::size_t n) = 0;
    [[nodiscard]] virtual std::uint64_t counted(frugal::counter which) const = 0;
    /// Bytes of weight images that are resident.
    [[nodiscard]] virtual std::size_t image_bytes() const = 0;
    /// Why the host had to compute what a device should have, if it had to.
    [[nodiscard]] virtual std::optional<frugal::error> last_failure() const = 0;
};

/// Loads the model of `file` (which must outlive the engine) with kernels of the instruction set that the machine, or the
/// environment variable FRUGAL_ISA, chooses. GGUF files go to make_packed_engine, unless options.exact.
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_engine(const model_file& file, frugal::device::executor_ref executor,
                                                                  const engine_options& options);

/// The same with weight images in host memory (device::packed_cpu) and activations in 8 bits. The file must be GGUF.
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_packed_engine(const model_file& file,
                                                                         frugal::device::executor_ref executor,
                                                                         const engine_options& options);

/// Appends `tokens` to one sequence in pieces of at most `piece` tokens. `logits` gets the rows of the last `wanted` tokens.
[[nodiscard]] frugal::status prefill(engine& model, frugal::attention::sequence_id sequence, std::span<const std::int32_t> tokens,
                                     std::size_t piece, std::size_t wanted, std::vector<float>& logits);

}  // namespace runner

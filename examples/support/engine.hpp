#pragma once
/// A model of any supported kind behind one run-time interface: what a program that takes a file name needs.
#include <cstddef>
#include <cstdint>
#include <functional>
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
    /// For devices that keep weight images. The file's pages are given back as images are packed, unless source_unneeded says
    /// what else to do.
    frugal::model::weight_store_options images{};
    /// Called with (done, total) bytes of the file while images are packed; the functions below set it.
    std::function<void(std::uint64_t, std::uint64_t)> progress = nullptr;
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
/// environment variable FRUGAL_ISA, chooses: by make_packed_engine, unless options.exact or the file is larger than the memory,
/// where weights are read where they lie. Brings the file into memory, with a bar on stderr where that is slow.
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_engine(const model_file& file, frugal::device::executor_ref executor,
                                                                  const engine_options& options);

/// The same with weight images in host memory (device::packed_cpu), which are packed here, on all threads, and activations in 8
/// bits.
[[nodiscard]] frugal::result<std::unique_ptr<engine>> make_packed_engine(const model_file& file,
                                                                         frugal::device::executor_ref executor,
                                                                         const engine_options& options);

/// What the functions that make engines have in common: calls `make` with options that show a bar on stderr while the engine is
/// loaded and give back pages of the file, and notes how long it took.
[[nodiscard]] frugal::result<std::unique_ptr<engine>> load_engine(
    engine_options options,
    const std::function<frugal::result<std::unique_ptr<engine>>(const engine_options&)>& make);

/// Appends `tokens` to one sequence in pieces of at most `piece` tokens. `logits` gets the rows of the last `wanted` tokens.
[[nodiscard]] frugal::status prefill(engine& model, frugal::attention::sequence_id sequence, std::span<const std::int32_t> tokens,
                                     std::size_t piece, std::size_t wanted, std::vector<float>& logits);

}  // namespace runner

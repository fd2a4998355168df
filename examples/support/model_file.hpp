#pragma once
/// A model's files: a GGUF file, or a directory with config.json, tokenizer.json and safetensors.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "frugal/core/error.hpp"
#include "frugal/io/chat.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/io/tokenizer.hpp"
#include "frugal/model/config.hpp"

namespace runner {

struct model_file {
    std::optional<frugal::io::gguf_file> gguf;                    ///< either this …
    std::optional<frugal::io::safetensors_directory> checkpoint;  ///< … or this
    std::optional<frugal::io::tokenizer> tokenizer;               ///< ends where the configuration says, too
    std::string chat_template;                                    ///< text; empty if the file has none
    frugal::model::config sizes;
    std::uint64_t bytes = 0;      ///< of all weights
    bool exceeds_memory = false;  ///< more than the machine has
};

struct open_options {
    std::optional<std::size_t> qsa_ratio;
    bool allow_paging = false;  ///< run a file that is larger than the machine's memory
};

/// Opens the files, reads sizes and tokenizer. Weights stay on disk until somebody reads them.
[[nodiscard]] frugal::result<model_file> open_model(const std::string& path, const open_options& options);

/// Brings all weights into memory, page by page, so that the wait is seen as progress and not as a slow first token.
void read_in(const model_file& file, const std::function<void(std::uint64_t, std::uint64_t)>& progress);

/// How conversations are written: as the file's own template has it. Where that is not one that is known, a note on stderr says
/// so, and they are written as Qwen3.5's. Errors: those of io::chat_template::create.
[[nodiscard]] frugal::result<frugal::io::chat_template> chat_layout(const model_file& file);

/// Path of an embedded model by name ("tiny-qwen35"), or the path itself.
[[nodiscard]] std::string resolve_model(const std::string& name);

}  // namespace runner

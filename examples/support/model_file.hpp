#pragma once
/// A model's files: a GGUF file, or a directory with config.json, tokenizer.json and safetensors.
#include <cstdint>
#include <optional>
#include <string>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/io/tokenizer.hpp"
#include "frugal/model/config.hpp"

namespace runner {

struct model_file {
    std::optional<frugal::io::gguf_file> gguf;                    ///< either this …
    std::optional<frugal::io::safetensors_directory> checkpoint;  ///< … or this
    std::optional<frugal::io::tokenizer> tokenizer;
    frugal::model::config sizes;
    std::uint64_t bytes = 0;  ///< of all weights
};

struct open_options {
    std::optional<std::size_t> qsa_ratio;
    bool allow_paging = false;  ///< run a file that is larger than the machine's memory
};

/// Opens the files, reads sizes and tokenizer. Shows a progress bar on stderr while a large file is read into memory.
[[nodiscard]] frugal::result<model_file> open_model(const std::string& path, const open_options& options);

/// Path of an embedded model by name ("tiny-qwen35"), or the path itself.
[[nodiscard]] std::string resolve_model(const std::string& name);

}  // namespace runner

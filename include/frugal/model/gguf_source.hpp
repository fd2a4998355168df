#pragma once
/// Tensors of a GGUF file as a tensor_source, and which of those that no role reads must not be there.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/printable.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/tensor_source.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

namespace detail {

/// "blk.7.attn_q.weight" taken apart.
struct FRUGAL_FLAGGED gguf_block_name {
    std::size_t block = 0;
    std::string_view rest;

    /// Empty for a tensor of no block.
    [[nodiscard]] static std::optional<gguf_block_name> parse(std::string_view name) noexcept {
        constexpr std::string_view begin = "blk.";
        if (!name.starts_with(begin)) return {};
        gguf_block_name out;
        const char *const first = name.data() + begin.size(), *const last = name.data() + name.size();
        const auto [after, error] = std::from_chars(first, last, out.block);
        if (error != std::errc() || after == last || *after != '.') return {};
        out.rest = name.substr(static_cast<std::size_t>(after + 1 - name.data()));
        return out;
    }
    /// Of a block that predicts further tokens.
    [[nodiscard]] bool predicts() const noexcept { return rest.starts_with("nextn.") || rest.starts_with("mtp."); }
};

/// Whether a tensor that no role of the model reads would have changed what the model computes. In the `trunk` blocks that is a
/// tensor of a part that such blocks have, in this family or another, or anything that is a bias, a scale or a norm; outside
/// them, what belongs to the embedding, the output or the rotary positions. The rest is ignored: images, prediction, names of
/// no known meaning.
[[nodiscard]] FRUGAL_FLAGGED inline bool gguf_tensor_matters(std::string_view name, std::size_t trunk) noexcept {
    const auto begins = [](std::string_view text, const auto& list) {
        return std::any_of(list.begin(), list.end(), [&](std::string_view part) { return text.starts_with(part); });
    };
    constexpr std::array<std::string_view, 10> block_parts = {"attn_", "ffn_",  "ssm_",    "hc_",       "indexer.",
                                                              "ple_",  "post_", "pre_ffw", "exp_probs", "layer_output"};
    constexpr std::array<std::string_view, 6> global_parts = {"token_embd",    "output",      "per_layer_",
                                                              "position_embd", "token_types", "rope_"};
    constexpr std::array<std::string_view, 4> endings = {".bias", "scale", "norm", "norm.weight"};
    const auto block = gguf_block_name::parse(name);
    if (!block) return begins(name, global_parts);
    if (block->block >= trunk || block->predicts()) return false;
    return begins(block->rest, block_parts) ||
           std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return block->rest.ends_with(ending); });
}

/// Blocks behind the `trunk` ones, which nothing runs, must be such as predict: otherwise the file counts its blocks wrongly, and
/// layers of the model would be left out. `key`: what counts them.
[[nodiscard]] inline status check_gguf_blocks(const io::gguf_file& file, std::string_view key, std::size_t trunk) {
    std::vector<std::size_t> predicting;
    for (const io::gguf_tensor& tensor : file.tensors())
        if (const auto name = gguf_block_name::parse(tensor.name); name && name->predicts()) predicting.push_back(name->block);
    std::sort(predicting.begin(), predicting.end());
    for (const io::gguf_tensor& tensor : file.tensors()) {
        const auto name = gguf_block_name::parse(tensor.name);
        if (!name || name->block < trunk) continue;
        if (!std::binary_search(predicting.begin(), predicting.end(), name->block))
            return fail(errc::malformed_file, file.name(), ": by ", key, " the model has ", trunk,
                        " blocks, but there is a tensor ", io::printable(tensor.name),
                        ", and nothing in its block predicts tokens");
    }
    return {};
}

}  // namespace detail

/// GGUF tensors as a tensor_source.
class FRUGAL_FLAGGED gguf_source {
public:
    explicit gguf_source(const io::gguf_file& file) noexcept : file_(file) {}

    [[nodiscard]] result<std::optional<source_tensor>> find(const std::string& name) const {
        const io::gguf_tensor* tensor = file_.find(name);
        if (tensor == nullptr) return std::optional<source_tensor>();
        FRUGAL_TRY_ASSIGN(const auto bytes, file_.bytes(*tensor));
        source_tensor out{tensor->name, tensor->type, {}, bytes, io::find_gguf_tensor_type(tensor->type)->name};
        for (std::size_t i = tensor->n_dims; i-- > 0;) out.shape.push_back(tensor->dims[i]);
        return std::optional<source_tensor>(std::move(out));
    }

    /// See binder::bind. Errors: unsupported, with the tensor's name.
    [[nodiscard]] status check_unbound(const std::vector<std::string>& bound, const config& sizes) const {
        std::vector<std::string_view> sorted(bound.begin(), bound.end());
        std::sort(sorted.begin(), sorted.end());
        for (const io::gguf_tensor& tensor : file_.tensors())
            if (!std::binary_search(sorted.begin(), sorted.end(), tensor.name) &&
                detail::gguf_tensor_matters(tensor.name, sizes.layers.size()))
                return fail(errc::unsupported, file_.name(), ": tensor ", io::printable(tensor.name),
                            " has no place in a model of architecture ", sizes.architecture,
                            "; without it the model would compute something else");
        return {};
    }

private:
    const io::gguf_file& file_;
};

}  // namespace model

FRUGAL_NAMESPACE_END

#pragma once
/// Where a file family puts a model's tensors: what stands before the names that the parts of a model give theirs
/// (tensor_name, beside each part's `bind`).
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include "frugal/core/error.hpp"
#include "frugal/model/convention.hpp"
#include "frugal/tensor/tensor_name.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

/// Names of one file family. `prefix` is "model." or "model.language_model." in Hugging Face checkpoints, unused in GGUF.
template <class Convention>
struct FRUGAL_FLAGGED tensor_names {
    static constexpr bool is_gguf = std::is_same_v<Convention, convention::gguf>;
    std::string prefix = "model.";

    /// The full name of a layer's tensor; empty where the family has none.
    [[nodiscard]] std::string layer(const tensor_name& name, std::size_t index) const {
        if constexpr (is_gguf)
            return name.gguf.empty() || name.is_global ? std::string(name.gguf) : concat("blk.", index, ".", name.gguf);
        else
            return name.hugging_face.empty() ? std::string() : concat(prefix, "layers.", index, ".", name.hugging_face);
    }
    /// The other name that it may have; empty where there is none.
    [[nodiscard]] std::string other(const tensor_name& name, std::size_t index) const {
        return is_gguf && !name.other_gguf.empty() ? concat("blk.", index, ".", name.other_gguf) : std::string();
    }
    /// The full name of a tensor outside the layers.
    [[nodiscard]] std::string global(const tensor_name& name) const {
        if constexpr (is_gguf)
            return std::string(name.gguf);
        else
            return name.hugging_face.empty() ? std::string() : concat(prefix, name.hugging_face);
    }
};

}  // namespace model

FRUGAL_NAMESPACE_END

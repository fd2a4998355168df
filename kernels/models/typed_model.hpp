#pragma once
/// A compiled model over one instantiation of the transformer. Private to the library.
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "frugal/io/gguf.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/model/compiled.hpp"
#include "frugal/model/config.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

using weight_files = std::variant<io::gguf_file, io::safetensors_directory>;

/// Defined in packed.cpp, once for each instruction set.
template <class Isa>
[[nodiscard]] result<std::unique_ptr<compiled_model>> make_packed_model(std::unique_ptr<weight_files> files, const config& sizes,
                                                                        const compiled_options& options,
                                                                        device::executor_ref threads);

}  // namespace model

FRUGAL_NAMESPACE_END

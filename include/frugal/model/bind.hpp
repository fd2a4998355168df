#pragma once
/// Binds the tensors of a file to the roles of a model: every shape is checked extent by extent, every missing or odd tensor is
/// an error with its name. A source that has `check_unbound(names, config)` is asked at the end about those that no role read.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/model/config.hpp"
#include "frugal/model/names.hpp"
#include "frugal/model/parts.hpp"
#include "frugal/model/tensor_source.hpp"
#include "frugal/model/weights.hpp"
#include "frugal/quant/codec.hpp"
#include "frugal/quant/weight.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

struct FRUGAL_FLAGGED bind_options {
    /// Decode every weight once and refuse NaN and infinity. Reads the whole file; small tensors are always checked.
    bool check_tensors = false;
};

namespace detail {

/// Reads tensors of a file by their full names.
template <class Convention, quant::format_list Formats, tensor_source Source>
class FRUGAL_FLAGGED tensor_reader {
public:
    tensor_reader(const Source& source, bind_options options) : source_(source), options_(options) {}

    /// Extents, outermost first.
    using extents = std::initializer_list<std::uint64_t>;

    /// As the convention writes them: {4, 512} in GGUF is [512, 4] in a checkpoint.
    [[nodiscard]] static std::string text_of(std::span<const std::uint64_t> shape) {
        std::string out;
        for (std::size_t i = 0; i < shape.size(); ++i)
            out += concat(i == 0 ? "" : ", ", shape[Convention::innermost_first ? shape.size() - 1 - i : i]);
        return Convention::innermost_first ? concat("{", out, "}") : concat("[", out, "]");
    }

    /// Extent by extent, one of `expected`. Extents of 1 in front count for nothing: files add and drop them.
    [[nodiscard]] static status check_shape(const source_tensor& t, std::initializer_list<extents> expected) {
        const auto significant = [](std::span<const std::uint64_t> shape) {
            while (!shape.empty() && shape.front() == 1) shape = shape.subspan(1);
            return shape;
        };
        const auto found = significant(t.shape);
        for (const extents& each : expected) {
            const auto want = significant({each.begin(), each.size()});
            if (std::equal(found.begin(), found.end(), want.begin(), want.end())) return {};
        }
        const extents& first = *expected.begin();
        return fail(errc::shape_mismatch, "tensor ", t.name, " has shape ", text_of(t.shape), "; ",
                    text_of({first.begin(), first.size()}), " is expected");
    }

    /// The tensor's blocks. Errors: those of quant::make_weight_view, with the names of tensor and type.
    [[nodiscard]] static result<quant::weight_view> view(const source_tensor& t, std::size_t rows, std::size_t cols) {
        auto out = quant::make_weight_view<Formats>(t.type, t.bytes, rows, cols);
        if (out) return out;
        if (out.error().code == errc::unsupported_format && !t.type_name.empty())
            return fail(errc::unsupported_format, "tensor ", t.name, " has type ", t.type_name,
                        ", which is not among the formats compiled: ", Formats::names());
        return fail(out.error().code, "tensor ", t.name, ": ", out.error().message);
    }

    [[nodiscard]] result<bool> has(const std::string& name) const {
        if (name.empty()) return false;
        FRUGAL_TRY_ASSIGN(const auto found, source_.find(name));
        return found.has_value();
    }
    /// Whether it is there, or is broken, which is found where it is read.
    [[nodiscard]] bool may_have(const std::string& name) const {
        if (name.empty()) return false;
        const auto found = source_.find(name);
        return !found || found->has_value();
    }
    [[nodiscard]] result<source_tensor> find(const std::string& name) {
        FRUGAL_TRY_ASSIGN(auto found, source_.find(name));
        if (!found) return fail(errc::not_found, "tensor ", name, " is missing from the file");
        bound_.push_back(name);
        return *std::move(found);
    }
    /// Blocks of a tensor of this shape, as rows x cols.
    [[nodiscard]] status rows_of(const std::string& name, extents shape, std::size_t rows, std::size_t cols,
                                 quant::weight_view& out) {
        FRUGAL_TRY_ASSIGN(const source_tensor t, find(name));
        FRUGAL_TRY(check_shape(t, {shape}));
        FRUGAL_TRY_ASSIGN(out, view(t, rows, cols));
        if (options_.check_tensors)
            if (const status finite = quant::check_finite<Formats>(out); !finite)
                return fail(finite.error().code, "tensor ", name, ": ", finite.error().message);
        return {};
    }
    /// All values as f32.
    [[nodiscard]] result<std::vector<float>> values(const std::string& name, std::initializer_list<extents> shapes) {
        FRUGAL_TRY_ASSIGN(const source_tensor t, find(name));
        FRUGAL_TRY(check_shape(t, shapes));
        std::size_t n = 1;
        for (const std::uint64_t extent : *shapes.begin()) n *= static_cast<std::size_t>(extent);
        FRUGAL_TRY_ASSIGN(const quant::weight_view all, view(t, 1, n));
        FRUGAL_TRY_ASSIGN(auto out, quant::dequantize<Formats>(all));
        for (std::size_t i = 0; i < out.size(); ++i)
            if (!std::isfinite(out[i])) return fail(errc::not_finite, "tensor ", name, " has a value of ", out[i], " at ", i);
        return out;
    }
    /// Names of the tensors that have been read.
    [[nodiscard]] const std::vector<std::string>& bound() const noexcept { return bound_; }
    [[nodiscard]] const Source& source() const noexcept { return source_; }

private:
    const Source& source_;
    bind_options options_;
    std::vector<std::string> bound_;
};

}  // namespace detail

/// A layer of a file, or what stands outside all layers, as the `bind` of a model's parts sees it: tensors by their short names.
/// Every function's errors: not_found, shape_mismatch, unsupported_format, not_finite; each names the tensor.
template <class Convention, class Reader, class Weights>
class FRUGAL_FLAGGED layer_file {
public:
    using convention = Convention;
    static constexpr std::size_t outside = static_cast<std::size_t>(-1);

    layer_file(Reader& reader, const tensor_names<Convention>& names, Weights& owner, std::size_t layer = outside)
        : reader_(reader), names_(names), owner_(owner), layer_(layer) {}

    /// Whether it is a checkpoint of Hugging Face's.
    [[nodiscard]] static constexpr bool is_checkpoint() noexcept { return !tensor_names<Convention>::is_gguf; }
    /// Whether files of this family may have the tensor.
    [[nodiscard]] static constexpr bool has_name(const tensor_name& n) noexcept {
        return !(is_checkpoint() ? n.hugging_face : n.gguf).empty();
    }
    /// The name that the file has for a tensor: the usual one unless only the other is there.
    [[nodiscard]] std::string name(const tensor_name& n) const {
        if (layer_ == outside) return names_.global(n);
        std::string usual = names_.layer(n, layer_), other = names_.other(n, layer_);
        return other.empty() || reader_.may_have(usual) || !reader_.may_have(other) ? usual : other;
    }
    [[nodiscard]] result<bool> has(const tensor_name& n) const { return reader_.has(name(n)); }
    /// How many rows a matrix has that may be absent.
    [[nodiscard]] result<std::optional<std::size_t>> rows_of(const tensor_name& n) const {
        FRUGAL_TRY_ASSIGN(const auto found, reader_.source().find(name(n)));
        if (!found) return std::optional<std::size_t>();
        if (found->shape.size() != 2)
            return fail(errc::shape_mismatch, "tensor ", name(n), " has shape ", Reader::text_of(found->shape),
                        "; two extents are expected");
        return std::optional<std::size_t>(static_cast<std::size_t>(found->shape[0]));
    }

    [[nodiscard]] status matrix(const tensor_name& n, std::size_t rows, std::size_t cols, quant::weight_view& out) {
        return reader_.rows_of(name(n), {rows, cols}, rows, cols, out);
    }
    /// `count` matrices, one after the other.
    [[nodiscard]] status stack(const tensor_name& n, std::size_t count, std::size_t rows, std::size_t cols,
                               quant::weight_view& out) {
        return reader_.rows_of(name(n), {count, rows, cols}, count * rows, cols, out);
    }
    /// n values as f32.
    [[nodiscard]] result<std::vector<float>> values(const tensor_name& of, std::size_t n) {
        return reader_.values(name(of), {{n}});
    }
    /// Takes over a small vector and returns where it lives: as long as the weights.
    [[nodiscard]] std::span<const float> keep(std::vector<float> values) { return owner_.keep(std::move(values)); }
    [[nodiscard]] status vector(const tensor_name& of, std::size_t n, std::span<const float>& out) {
        FRUGAL_TRY_ASSIGN(auto read, values(of, n));
        out = keep(std::move(read));
        return {};
    }
    /// A convolution of each channel by itself; the extent between, of inputs a channel, may be left out.
    [[nodiscard]] status convolution(const tensor_name& n, std::size_t channels, std::size_t kernel,
                                     std::span<const float>& out) {
        using extents = typename Reader::extents;
        constexpr bool squeezed = Convention::innermost_first;
        const extents with{channels, 1, kernel}, without{channels, kernel};
        FRUGAL_TRY_ASSIGN(auto read, reader_.values(name(n), {squeezed ? without : with, squeezed ? with : without}));
        out = keep(std::move(read));
        return {};
    }

private:
    Reader& reader_;
    const tensor_names<Convention>& names_;
    Weights& owner_;
    std::size_t layer_;
};

/// Binds every tensor that a model of `Spec` with these sizes needs.
/// Errors: not_found, shape_mismatch, unsupported_format, not_finite, invalid_argument; each names the tensor.
template <specification Spec, class Convention, quant::format_list Formats, tensor_source Source>
[[nodiscard]] result<weights<Spec>> bind(const Source& source, const config& sizes, const tensor_names<Convention>& names,
                                         bind_options options = {}) {
    using parts = parts_of<Spec, Convention>;
    using reader_type = detail::tensor_reader<Convention, Formats, Source>;
    using file_type = layer_file<Convention, reader_type, weights<Spec>>;
    FRUGAL_TRY(validate<Spec>(sizes));
    weights<Spec> out;
    reader_type reader(source, options);
    file_type whole(reader, names, out);
    FRUGAL_TRY(whole.matrix({"token_embd.weight", "embed_tokens.weight"}, sizes.vocabulary, sizes.hidden, out.embedding));
    out.head = out.embedding;
    const std::string head = tensor_names<Convention>::is_gguf ? "output.weight" : "lm_head.weight";
    FRUGAL_TRY_ASSIGN(const bool untied, reader.has(head));
    if (untied) FRUGAL_TRY(reader.rows_of(head, {sizes.vocabulary, sizes.hidden}, sizes.vocabulary, sizes.hidden, out.head));
    const auto residual = parts::residual::make_dims(sizes);
    FRUGAL_TRY(parts::residual::bind(whole, layer::residual_place::output, residual, out.output));
    FRUGAL_TRY_ASSIGN(const auto kinds, kinds_of_layers<Spec>(sizes));
    out.layers.resize(sizes.layers.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        file_type file(reader, names, out, i);
        layer_weights<Spec>& w = out.layers[i];
        FRUGAL_TRY(parts::residual::bind(file, layer::residual_place::mixer, residual, w.around_mixer));
        FRUGAL_TRY(parts::residual::bind(file, layer::residual_place::feed_forward, residual, w.around_feed_forward));
        FRUGAL_TRY(parts::with_kind(kinds[i], [&]<class Kind>(type_tag<Kind>) {
            return Kind::bind(file, Kind::make_dims(sizes, i), w.mixer.template emplace<typename Kind::weights>());
        }));
        FRUGAL_TRY(parts::feed_forward::bind(file, parts::feed_forward::make_dims(sizes), w.feed_forward));
    }
    if constexpr (parts::has_modules) {
        using modules = typename parts::modules;
        out.modules.resize(modules::count(sizes));
        for (std::size_t m = 0; m < out.modules.size(); ++m) {
            file_type file(reader, names, out, modules::layer_of(sizes, m));
            FRUGAL_TRY(modules::bind(file, modules::make_dims(sizes, m), out.modules[m]));
        }
    }
    if constexpr (requires { source.check_unbound(reader.bound(), sizes); })
        FRUGAL_TRY(source.check_unbound(reader.bound(), sizes));
    return out;
}

}  // namespace model

FRUGAL_NAMESPACE_END

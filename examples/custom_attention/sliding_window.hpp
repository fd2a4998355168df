#pragma once
// An attention variant of one's own, without touching the library: each token sees the newest ones of its sequence.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "frugal/attention/value_state.hpp"
#include "frugal/model/spec.hpp"

namespace mine {
using namespace frugal;

/// The newest keys and values of a sequence, [tokens, width] each.
struct window {
    std::size_t length = 0;
    std::vector<float> keys, values;
    void save(byte_writer& out) const {
        for (const auto* part : {&keys, &values}) out.write(std::uint64_t{part->size()}), out.write_span(std::span(*part));
    }
    status parse(byte_reader& in) {
        for (auto* part : {&keys, &values}) {
            std::uint64_t size = 0;
            FRUGAL_TRY(in.read(size));
            if (size > in.remaining()) return fail(errc::malformed_file, "a window of ", size, " features");
            part->resize(size);
            FRUGAL_TRY(in.read_span(std::span(*part)));
        }
        return {};
    }
};

/// Sizes, tensors and products are those of full attention; what it remembers and does is its own.
template <class Build, std::size_t Tokens>
struct sliding_window : model::full_layer<Build> {
    using full = model::full_layer<Build>;
    static constexpr std::string_view name = "sliding_window";
    using state = attention::value_state<window>;
    static result<state> make_state(const attention::full_dims&, const attention::state_sizes& sizes) {
        return state(sizes.sequences);
    }
    template <class Pass>
    static status forward(Pass& pass, std::size_t layer, const attention::full_dims& d, const attention::full_weights& w,
                          state& kept, const attention::step& step, matrix_view<const float> x, matrix_view<float> y) {
        typename Pass::scope scope(pass);
        FRUGAL_TRY_ASSIGN(auto products, pass.template begin<attention::full_products>(layer, w));
        FRUGAL_TRY_ASSIGN(const auto input, products.share(x));
        FRUGAL_TRY_ASSIGN(const auto heads, attention::project<typename full::norm_weight>(pass, products, d, w, step, input));
        FRUGAL_TRY_ASSIGN(const auto attended, pass.input_matrix(x.rows(), d.heads * d.head_dim));
        const std::size_t width = d.kv_heads * d.head_dim;
        for (const attention::segment& s : step.tokens.segments)
            for (std::size_t r = s.first; s.sequence != attention::sequence_id::padding && r < s.first + s.count; ++r) {
                auto& [length, keys, values] = kept.at(s.sequence);
                const auto oldest = static_cast<std::ptrdiff_t>(length++ < Tokens ? 0 : width);
                keys.erase(keys.begin(), keys.begin() + oldest), values.erase(values.begin(), values.begin() + oldest);
                keys.insert(keys.end(), heads.keys.row(r), heads.keys.row(r) + width);
                values.insert(values.end(), heads.values.row(r), heads.values.row(r) + width);
                const float *const k = keys.data(), *const v = values.data();
                const ops::key_value_view<float> view{&k, &v, 31, width};
                const ops::attention_row<float> row{&view, nullptr, keys.size() / width};
                FRUGAL_TRY(ops::attention(pass.device(), pass.scratch(), heads.queries_and_gates.rows_range(r, 1),
                                          std::span(&row, 1), d.shape(), d.scale(), attended.rows_range(r, 1)));
            }
        FRUGAL_TRY(attention::gate_and_project(pass, products, d, heads, attended, y));
        return attention::clear_padding(step, y);
    }
};

}  // namespace mine

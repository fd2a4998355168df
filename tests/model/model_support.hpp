#pragma once
/// Models for the tests: loaded from golden files, GGUF files or changed copies of them, and run in any way.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/io/gguf.hpp"
#include "frugal/io/safetensors.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/hugging_face_loader.hpp"
#include "frugal/model/transformer.hpp"
#include "golden.hpp"
#include "isa.hpp"
#include "threads.hpp"

namespace test {

using frugal::attention::segment;
using frugal::attention::sequence_id;

/// The value, or a failed test with the error's message.
template <class T>
T must(frugal::result<T> r) {
    REQUIRE_MESSAGE(r.has_value(), (r ? std::string() : r.error().message));
    return std::move(r).value();
}
inline void must(const frugal::status& s) { REQUIRE_MESSAGE(s.has_value(), (s ? std::string() : s.error().message)); }

/// QSA's blocks chosen by f32 keys, as the references choose them.
using exact_selection = frugal::ops::cache_precision<float, float>;

template <class Isa>
using counting_cpu = frugal::device::cpu<Isa, frugal::counters_on>;

/// A model with its device, pass and state, behind the few calls that tests make.
template <class Spec, class Convention, class Device, class... Option>
struct running_model {
    using device_type = Device;
    using model_type = frugal::model::transformer<Spec, Convention, frugal::policies<device_type, Option...>>;

    model_type model;
    device_type device;
    typename model_type::pass_type pass;
    typename model_type::store_type& store;
    typename model_type::state state;

    /// `device...`: what the device is made from.
    template <class... Argument>
    running_model(model_type m, frugal::model::state_options options, frugal::model::weight_store_options images,
                  Argument&&... argument)
        : model(std::move(m)),
          device(std::forward<Argument>(argument)...),
          pass(must(model.make_pass(device, images))),
          store(pass.store()),
          state(must(model.make_state(options))) {}
    running_model(const running_model&) = delete;
    running_model& operator=(const running_model&) = delete;

    [[nodiscard]] std::size_t vocabulary() const { return model.sizes().vocabulary; }

    /// Logits of every token, one after the other.
    template <class Observer = frugal::model::no_observer>
    std::vector<float> run(std::span<const std::int32_t> tokens, sequence_id s = sequence_id{0}, Observer&& observe = {}) {
        const segment whole{s, 0, tokens.size()};
        return run_batch(tokens, {&whole, 1}, observe);
    }
    template <class Observer = frugal::model::no_observer>
    std::vector<float> run_batch(std::span<const std::int32_t> tokens, std::span<const segment> segments,
                                 Observer&& observe = {}) {
        std::vector<std::size_t> rows(tokens.size());
        std::iota(rows.begin(), rows.end(), std::size_t{0});
        std::vector<float> logits(rows.size() * vocabulary());
        must(model.forward(pass, state, {tokens, segments, {}, rows},
                           frugal::matrix_view<float>(logits.data(), rows.size(), vocabulary()), observe));
        return logits;
    }
    /// Logits of every token, fed in pieces of these sizes (the last one repeats).
    std::vector<float> run_pieces(std::span<const std::int32_t> tokens, std::vector<std::size_t> pieces,
                                  sequence_id s = sequence_id{0}) {
        std::vector<float> out;
        for (std::size_t begin = 0, i = 0; begin < tokens.size(); ++i) {
            const std::size_t n = std::min(pieces[std::min(i, pieces.size() - 1)], tokens.size() - begin);
            const auto part = run(tokens.subspan(begin, n), s);
            out.insert(out.end(), part.begin(), part.end());
            begin += n;
        }
        return out;
    }
    /// `n` greedy tokens after the logits of the last token.
    std::vector<std::int32_t> greedy(std::vector<float> logits, std::size_t n, sequence_id s = sequence_id{0}) {
        std::vector<std::int32_t> out;
        while (out.size() < n) {
            const auto last = logits.end() - static_cast<std::ptrdiff_t>(vocabulary());
            out.push_back(static_cast<std::int32_t>(std::max_element(last, logits.end()) - last));
            if (out.size() < n) logits = run({&out.back(), 1}, s);
        }
        return out;
    }
};

template <class Running, class Spec, class File, class... Argument>
auto make_running(const File& file, const frugal::model::config& sizes, frugal::model::state_options options,
                  const frugal::model::weight_store_options& images, Argument&&... argument) {
    using model_type = typename Running::model_type;
    auto weights = must(frugal::model::read_weights<Spec, typename model_type::formats>(file, sizes));
    return std::make_unique<Running>(must(model_type::create(sizes, std::move(weights))), options, images,
                                     std::forward<Argument>(argument)...);
}

/// A golden model: weights and configuration of one .safetensors file.
struct golden_model {
    golden data;
    frugal::io::safetensors_file file;
    frugal::model::config sizes;

    explicit golden_model(const std::string& name)
        : data(name), file(must(frugal::io::safetensors_file::open(std::string(FRUGAL_TEST_DATA "/") + name + ".safetensors"))) {
        sizes = must(frugal::model::read_config(data.params().at("config").text(), file));
    }
    template <class Spec, class Isa, class... Option>
    auto run(frugal::model::state_options options, frugal::device::executor_ref executor = {}) const {
        return run_on<Spec, counting_cpu<Isa>, Option...>(options, {}, executor);
    }
    /// On a device that is made from `argument...`.
    template <class Spec, class Device, class... Option, class... Argument>
    auto run_on(frugal::model::state_options options, frugal::model::weight_store_options images, Argument&&... argument) const {
        return make_running<running_model<Spec, frugal::model::convention::hugging_face, Device, Option...>, Spec>(
            file, sizes, options, images, std::forward<Argument>(argument)...);
    }
    [[nodiscard]] std::vector<std::int32_t> tokens() const {
        std::vector<std::int32_t> out;
        for (const std::int64_t id : data.i64("io.tokens")) out.push_back(static_cast<std::int32_t>(id));
        return out;
    }
};

/// A GGUF model.
struct gguf_model {
    frugal::io::gguf_file file;
    frugal::model::config sizes;

    explicit gguf_model(const std::string& path, frugal::model::load_options options = {})
        : gguf_model(must(frugal::io::gguf_file::open(path)), options) {}
    explicit gguf_model(frugal::io::gguf_file opened, frugal::model::load_options options = {})
        : file(std::move(opened)), sizes(must(frugal::model::read_config(file, options))) {}

    template <class Spec, class Isa, class... Option>
    auto run(frugal::model::state_options options, frugal::device::executor_ref executor = {}) const {
        return run_on<Spec, counting_cpu<Isa>, Option...>(options, {}, executor);
    }
    /// On a device that is made from `argument...`.
    template <class Spec, class Device, class... Option, class... Argument>
    auto run_on(frugal::model::state_options options, frugal::model::weight_store_options images, Argument&&... argument) const {
        return make_running<running_model<Spec, frugal::model::convention::gguf, Device, Option...>, Spec>(
            file, sizes, options, images, std::forward<Argument>(argument)...);
    }
};

/// A copy of an embedded model's file that a test may damage.
inline std::vector<std::byte> embedded_file(const std::string& name) {
    std::ifstream in(std::string(FRUGAL_EXAMPLE_MODELS "/") + name + "-Q4_K_M.gguf", std::ios::binary);
    const std::vector<char> raw((std::istreambuf_iterator<char>(in)), {});
    REQUIRE(!raw.empty());
    const auto view = std::as_bytes(std::span(raw));
    return {view.begin(), view.end()};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace test

#pragma once
/// The experts of a mixture: their weights, and who multiplies with them.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/image.hpp"
#include "frugal/layer/dense_ffn.hpp"
#include "frugal/ops/matmul/grouped_matmul.hpp"
#include "frugal/ops/matmul/image_matmul.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/reuse/inputs/shared_activations.hpp"
#include "frugal/reuse/weights/host_weights.hpp"
#include "frugal/reuse/weights/image_cache.hpp"
#include "frugal/reuse/weights/image_products.hpp"
#include "frugal/reuse/weights/products.hpp"
#include "frugal/tensor/view.hpp"
#include "frugal/tensor/workspace.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace layer {

/// One weight matrix for each expert, all of one format and shape: at a fixed distance, or each at a place of its own.
struct FRUGAL_FLAGGED expert_stack {
    quant::weight_view first;
    std::size_t experts = 0, stride_bytes = 0;
    std::vector<const std::byte*> places;  ///< where each expert's matrix starts; empty: at the fixed distance

    /// Precondition: e < experts.
    [[nodiscard]] quant::weight_view expert(std::size_t e) const noexcept {
        quant::weight_view w = first;
        w.data = places.empty() ? first.data + e * stride_bytes : places[e];
        return w;
    }
    /// Matrices that lie anywhere, as checkpoints with one tensor an expert have them. Errors: shape_mismatch.
    [[nodiscard]] static result<expert_stack> separate(std::span<const quant::weight_view> matrices) {
        expert_stack out;
        if (matrices.empty()) return out;
        out.first = matrices.front();
        out.experts = matrices.size();
        for (const quant::weight_view& m : matrices) {
            if (m.type != out.first.type || m.rows != out.first.rows || m.cols != out.first.cols)
                return fail(errc::shape_mismatch, "expert ", out.places.size(), " is [", m.rows, ", ", m.cols, "] of type ",
                            static_cast<std::uint32_t>(m.type), ", expert 0 is [", out.first.rows, ", ", out.first.cols,
                            "] of type ", static_cast<std::uint32_t>(out.first.type));
            out.places.push_back(m.data);
        }
        return out;
    }
    /// `all` holds the rows of expert 0, then of expert 1, …; takes rows row_begin … row_begin + rows - 1 of each expert.
    /// A fused stack [experts, 2 * width, hidden] gives gate with (0, width) and up with (width, width).
    /// Errors: shape_mismatch.
    [[nodiscard]] static result<expert_stack> part(const quant::weight_view& all, std::size_t experts, std::size_t row_begin,
                                                   std::size_t rows) {
        if (experts == 0 || all.rows % experts != 0)
            return fail(errc::shape_mismatch, all.rows, " rows cannot be those of ", experts, " experts");
        const std::size_t each = all.rows / experts;
        if (row_begin > each || rows > each - row_begin)
            return fail(errc::shape_mismatch, "rows ", row_begin, " … of an expert with ", each, " rows: ", rows,
                        " are not there");
        return expert_stack{all.rows_range(row_begin, rows), experts, each * all.row_bytes, {}};
    }
    /// All rows of each expert.
    [[nodiscard]] static result<expert_stack> whole(const quant::weight_view& all, std::size_t experts) {
        return part(all, experts, 0, experts == 0 ? 0 : all.rows / experts);
    }
};

/// router: [experts, hidden]; gate and up of an expert: [width, hidden]; down: [hidden, width].
/// The shared expert: shared_gate_proj and shared_up [shared width, hidden], shared_down [hidden, shared width]; absent if
/// shared_down is empty. shared_gate: [1, hidden], its sigmoid scales the shared expert; not scaled if empty.
struct FRUGAL_FLAGGED moe_weights {
    quant::weight_view router;
    expert_stack gate, up, down;
    quant::weight_view shared_gate, shared_gate_proj, shared_up, shared_down;

    [[nodiscard]] dense_ffn_weights shared_expert() const noexcept { return {shared_gate_proj, shared_up, shared_down}; }
};

/// The products of a mixture's own; those of the shared expert are dense_ffn_products. See reuse/weights/products.hpp.
using router_product = reuse::small_product<&moe_weights::router>;
using shared_gate_product = reuse::small_product<&moe_weights::shared_gate>;
using moe_products = reuse::product_list<moe_weights, router_product, shared_gate_product>;

struct FRUGAL_FLAGGED moe_dims {
    std::size_t experts = 0, top_k = 0;
    bool renormalise = true;  ///< divide a row's weights by their sum
};

/// Rows first … first + count - 1 of a slice's inputs go through one expert.
struct FRUGAL_FLAGGED expert_rows {
    std::size_t expert = 0, first = 0, count = 0;
};

/// The routed experts of a layer, multiplied on the CPU from the blocks of the file. Another class in its place offers the
/// same three members: `share`, as reuse::direct_products has it; for each group gate[rows] = gate_e x[rows] and
/// up[rows] = up_e x[rows], then y[rows] = down_e x[rows]. Errors: those of ops::grouped_matmul.
template <quant::format_list Formats, device::cpu_target Device,
          reuse::activation_sharing_policy Sharing = reuse::default_activation_sharing>
class FRUGAL_FLAGGED direct_experts {
public:
    direct_experts(Device& dev, workspace& scratch, const moe_weights& weights) noexcept
        : dev_(dev), scratch_(scratch), weights_(weights) {}

    [[nodiscard]] result<reuse::product_input> share(matrix_view<const float> x) {
        return reuse::share_input<Sharing>(dev_, scratch_, x);
    }
    [[nodiscard]] status gate_and_up(std::span<const expert_rows> groups, const reuse::product_input& x, matrix_view<float> gate,
                                     matrix_view<float> up) {
        workspace::scope scope(scratch_);
        FRUGAL_TRY_ASSIGN(const ops::prepared_activations ready, reuse::make_ready(dev_, scratch_, x));
        std::vector<ops::matmul_product> products;
        products.reserve(2 * groups.size());
        for (const expert_rows& g : groups) {
            const auto rows = ready.rows_range(g.first, g.count);
            products.push_back({weights_.gate.expert(g.expert), rows, gate.rows_range(g.first, g.count)});
            products.push_back({weights_.up.expert(g.expert), rows, up.rows_range(g.first, g.count)});
        }
        return ops::grouped_matmul<Formats>(dev_, scratch_, products);
    }
    [[nodiscard]] status down(std::span<const expert_rows> groups, const reuse::product_input& x, matrix_view<float> y) {
        workspace::scope scope(scratch_);
        FRUGAL_TRY_ASSIGN(const ops::prepared_activations ready, reuse::make_ready(dev_, scratch_, x));
        std::vector<ops::matmul_product> products;
        products.reserve(groups.size());
        for (const expert_rows& g : groups)
            products.push_back(
                {weights_.down.expert(g.expert), ready.rows_range(g.first, g.count), y.rows_range(g.first, g.count)});
        return ops::grouped_matmul<Formats>(dev_, scratch_, products);
    }

private:
    Device& dev_;
    workspace& scratch_;
    const moe_weights& weights_;
};

struct FRUGAL_FLAGGED expert_store_options {
    std::size_t layers = 0, experts = 0;
    std::size_t byte_budget = (std::numeric_limits<std::size_t>::max)();  ///< of images; the most recently used stay
    reuse::on_device_failure on_failure = reuse::on_device_failure::use_host;
    reuse::source_unneeded source_unneeded = nullptr;  ///< may be empty; an image that was dropped is packed from the file again
};

/// Images of the routed experts of all layers. Which experts a step needs is known only when it has routed, so no step loads
/// ahead: an expert's matrices are prepared when it is chosen and its image is not there (reload_always: whenever it is chosen).
/// pack() makes images before any step, as many as there is room for. One step at a time.
template <device::image_target Device, quant::format_list Formats,
          reuse::weight_loading_policy Loading = reuse::default_weight_loading, counter_policy Counters = counters_off,
          reuse::activation_sharing_policy Sharing = reuse::default_activation_sharing>
class FRUGAL_FLAGGED expert_store {
    using image = typename Device::image;
    using host_weights = reuse::host_weights<typename Device::source>;

public:
    explicit expert_store(expert_store_options options)
        : options_(std::move(options)),
          cache_(options_.layers * options_.experts * 2, options_.byte_budget),
          version_(reuse::next_weight_version()),
          failures_(options_.on_failure) {}

    /// The experts of one layer for one step.
    class step {
    public:
        [[nodiscard]] result<reuse::product_input> share(matrix_view<const float> x) {
            return reuse::share_input<Sharing>(dev_, scratch_, x);
        }
        [[nodiscard]] status gate_and_up(std::span<const expert_rows> groups, const reuse::product_input& x,
                                         matrix_view<float> gate, matrix_view<float> up) {
            return store_.multiply_all<2>(
                dev_, scratch_, groups, x,
                [&](const expert_rows& g) {
                    return std::array{weights_.gate.expert(g.expert), weights_.up.expert(g.expert)};
                },
                [&](const expert_rows& g) { return key(g, 0); }, std::array{gate, up});
        }
        [[nodiscard]] status down(std::span<const expert_rows> groups, const reuse::product_input& x, matrix_view<float> y) {
            return store_.multiply_all<1>(
                dev_, scratch_, groups, x, [&](const expert_rows& g) { return std::array{weights_.down.expert(g.expert)}; },
                [&](const expert_rows& g) { return key(g, 1); }, std::array{y});
        }

    private:
        friend class expert_store;
        step(expert_store& store, Device& dev, workspace& scratch, std::size_t layer, const moe_weights& weights) noexcept
            : store_(store), dev_(dev), scratch_(scratch), layer_(layer), weights_(weights) {}
        [[nodiscard]] std::size_t key(const expert_rows& g, std::size_t part) const noexcept {
            return store_.key(layer_, g.expert, part);
        }

        expert_store& store_;
        Device& dev_;
        workspace& scratch_;
        std::size_t layer_;
        const moe_weights& weights_;
    };

    [[nodiscard]] step begin(Device& dev, workspace& scratch, std::size_t layer, const moe_weights& weights) {
        cache_.validate(version_, dev.generation());
        return step(*this, dev, scratch, layer, weights);
    }

    /// Packs the images of a layer's experts that are absent, in order, as far as there is room: none is dropped for another.
    /// `packed(bytes)` is called for each expert with the bytes of its matrices in the file, also where nothing was packed.
    /// Errors: those of the host weights, and the device's, where the store does not let the host do its work.
    template <class Packed>
    [[nodiscard]] status pack(Device& dev, std::size_t layer, const moe_weights& weights, Packed&& packed) {
        cache_.validate(version_, dev.generation());
        bool more = !on_host_;
        const auto one = [&]<std::size_t N>(std::size_t number, const std::array<quant::weight_view, N>& w) -> status {
            if (!more) return {};
            bool loaded = false;
            auto there = cache_.fill(number, last_bytes_[N - 1], [&] { return make(dev, w, loaded); });
            if (there) return {};
            status failed = std::move(there).error();
            if (!failures_.host_takes_over(failed, counters_)) return failed;
            more = false;  // the other experts are of the same shape
            return {};
        };
        for (std::size_t e = 0; e < weights.gate.experts; ++e) {
            const std::array gate_up{weights.gate.expert(e), weights.up.expert(e)};
            const std::array down{weights.down.expert(e)};
            FRUGAL_TRY(one(key(layer, e, 0), gate_up));
            FRUGAL_TRY(one(key(layer, e, 1), down));
            packed(gate_up[0].bytes() + gate_up[1].bytes() + down[0].bytes());
        }
        return {};
    }
    /// Bytes of the file that a layer's experts are packed from.
    [[nodiscard]] static std::size_t source_bytes(const moe_weights& w) noexcept {
        return w.gate.experts * (w.gate.first.bytes() + w.up.first.bytes() + w.down.first.bytes());
    }

    void use_host(bool on) noexcept { on_host_ = on; }
    /// A device that was full is asked again.
    void retry() noexcept { cache_.retry(); }
    void weights_changed() noexcept { version_ = reuse::next_weight_version(); }
    [[nodiscard]] const reuse::image_cache<image>& images() const noexcept { return cache_; }
    [[nodiscard]] Counters& counters() noexcept { return counters_; }
    [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
    [[nodiscard]] const std::optional<error>& last_failure() const noexcept { return failures_.last(); }

private:
    template <std::size_t N>
    [[nodiscard]] status load(Device& dev, const std::array<quant::weight_view, N>& w) {
        const count_time<Counters> timed(counters_, counter::load_nanoseconds);
        for (std::size_t i = 0; i < N; ++i) {
            FRUGAL_TRY_ASSIGN(const std::size_t written, loaded_[i].template load<Formats>(dev, w[i]));
            reuse::count_load(counters_, written);
        }
        return {};
    }

    // Products with images that are here, not computed yet: one parallel region takes them all.
    class pending {
    public:
        pending(Device& dev, workspace& scratch, Counters& counters) noexcept
            : dev_(dev), scratch_(scratch), counters_(counters) {}
        template <std::size_t N>
        void add(const image& resident, const ops::prepared_activations& x, const std::array<matrix_view<float>, N>& y) {
            for (std::size_t i = 0; i < N; ++i) products_.push_back({resident.parts()[i], x, y[i]});
            ++images_;
        }
        void compute() {
            if (!done_ || products_.empty()) return;
            const count_time<Counters> timed(counters_, counter::device_nanoseconds);
            if constexpr (!device::multiplying_target<Device>)
                done_ = ops::grouped_image_matmul(dev_, scratch_, std::span<const ops::image_product>(products_));
            if (done_) counters_.add(counter::image_products, images_);
            products_.clear();
            images_ = 0;
        }
        [[nodiscard]] status finish() {
            compute();
            return std::move(done_);
        }

    private:
        Device& dev_;
        workspace& scratch_;
        Counters& counters_;
        std::vector<ops::image_product> products_;
        std::size_t images_ = 0;
        status done_;
    };

    /// For each group, rows of x times the N matrices of its expert.
    template <std::size_t N, class Weights, class Key>
    [[nodiscard]] status multiply_all(Device& dev, workspace& scratch, std::span<const expert_rows> groups,
                                      const reuse::product_input& x, const Weights& weights_of, const Key& key_of,
                                      const std::array<matrix_view<float>, N>& y) {
        constexpr bool kernels_multiply = !device::multiplying_target<Device>;
        workspace::scope scope(scratch);
        pending later(dev, scratch, counters_);
        for (const expert_rows& g : groups) {
            const std::array<quant::weight_view, N> w = weights_of(g);
            std::array<matrix_view<float>, N> out;
            for (std::size_t i = 0; i < N; ++i) out[i] = y[i].rows_range(g.first, g.count);
            const reuse::product_input rows = x.rows_range(g.first, g.count);
            if (!on_host_) {
                status done;
                auto resident = get(dev, key_of(g), w, later);
                if (!resident) {
                    done = std::move(resident).error();
                } else if constexpr (kernels_multiply) {
                    FRUGAL_TRY_ASSIGN(const ops::prepared_activations ready, reuse::make_ready(dev, scratch, rows));
                    later.add(**resident, ready, out);
                } else {
                    const count_time<Counters> timed(counters_, counter::device_nanoseconds);
                    done = reuse::multiply_image(dev, scratch, **resident, rows, out);
                    if (done) counters_.add(counter::image_products, 1);
                }
                if (done) continue;
                if (!failures_.host_takes_over(done, counters_)) return done;
            }
            FRUGAL_TRY(reuse::multiply_each<Formats>(dev, scratch, w, rows, out));
        }
        return later.finish();
    }

    template <std::size_t N>
    [[nodiscard]] result<const image*> get(Device& dev, std::size_t key, const std::array<quant::weight_view, N>& w,
                                           pending& later) {
        if constexpr (!Loading::skips_resident)
            FRUGAL_TRY(load(dev, w));
        else if (cache_.holds(key))
            counters_.add(counter::loads_skipped, N);
        bool loaded = !Loading::skips_resident;  // once, however often the cache has to make room
        return cache_.get(
            key, last_bytes_[N - 1], [&] { return make(dev, w, loaded); }, [&] { later.compute(); });
    }

    /// Packs an image. `loaded`: whether the host's copies of its matrices are prepared, which this does if they are not.
    template <std::size_t N>
    [[nodiscard]] result<image> make(Device& dev, const std::array<quant::weight_view, N>& w, bool& loaded) {
        if (!loaded) FRUGAL_TRY(load(dev, w));
        loaded = true;
        std::array<typename Device::source, N> parts;
        for (std::size_t i = 0; i < N; ++i) parts[i] = loaded_[i].source();
        FRUGAL_TRY_ASSIGN(image made, dev.pack(std::span<const typename Device::source>(parts)));
        counters_.add(counter::images_packed, 1);
        counters_.add(counter::image_bytes_uploaded, made.bytes());
        last_bytes_[N - 1] = made.bytes();
        if (options_.source_unneeded)
            for (const quant::weight_view& matrix : w) options_.source_unneeded({matrix.data, matrix.bytes()});
        return made;
    }

    [[nodiscard]] std::size_t key(std::size_t layer, std::size_t expert, std::size_t part) const noexcept {
        return (layer * options_.experts + expert) * 2 + part;
    }

    expert_store_options options_;
    reuse::image_cache<image> cache_;
    reuse::weight_version version_;
    std::array<host_weights, 2> loaded_;
    std::array<std::size_t, 2> last_bytes_{};  // experts are of one size, so the last image's is the next one's
    bool on_host_ = false;
    reuse::device_failures failures_;
    [[no_unique_address]] Counters counters_;
};

}  // namespace layer

FRUGAL_NAMESPACE_END

#pragma once
// What every group of benchmarks shares: registration with a check before timing, data, and the machine's limits.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/quant/formats.hpp"
#include "frugal/quant/weight.hpp"
#include "frugal/tensor/view.hpp"

namespace bench {

namespace fg = frugal;

/// What one call of an operator must move and compute, whatever the implementation.
struct work {
    double bytes = 0;  ///< read from and written to memory at least once
    double flops = 0;  ///< additions and multiplications
};

/// One benchmark with its data in place.
struct prepared {
    std::function<std::string()> check;  ///< what is wrong with a result; empty: nothing
    std::function<void()> run;
    work cost;
};

/// Registers `name` (op/format/isa/shape). `prepare` is called when the benchmark's turn comes; a failed check stops it from
/// being timed, and the program ends with 1.
void add(const std::string& name, std::string_view isa, std::function<prepared()> prepare);

/// The same for a type with its data as members: `status run()`, then `std::string check()` on what the first run left, and
/// `work cost()`.
template <class Case, class... Argument>
void add_case(const std::string& name, std::string_view isa, Argument... argument) {
    add(name, isa, [argument...]() -> prepared {
        const auto data = std::make_shared<Case>(argument...);
        return {[data]() -> std::string {
                    const fg::status done = data->run();
                    return done ? data->check() : done.error().message;
                },
                [data] { (void)data->run(); }, data->cost()};
    });
}

/// Every group defines this one: it calls `add`.
void register_benchmarks();

/// Threads of this run (FRUGAL_BENCH_THREADS, 1 by default), as an executor.
fg::device::executor_ref executor();
/// The same for so many threads, or as many as there are processors.
fg::device::executor_ref executor(std::size_t threads);

/// Bytes of the last-level cache.
std::size_t last_level_cache();

/// Calls body(type_tag<Isa>) for every instruction set of the machine, or for the one that FRUGAL_ISA names.
template <class Body>
void for_each_isa(Body&& body) {
    const std::string_view forced = fg::device::forced_isa();
    const auto one = [&]<class Isa>(fg::type_tag<Isa> tag) {
        if (fg::isa::supported<Isa>() && (forced.empty() || forced == Isa::name)) body(tag);
    };
    [&]<class... Isa>(fg::type_list<Isa...>) { (one(fg::type_tag<Isa>{}), ...); }(fg::isa::all{});
}

/// Joins with slashes: the grammar of names.
template <class... Part>
std::string name(const Part&... part) {
    std::string out;
    ((out += out.empty() ? "" : "/", out += fg::concat(part)), ...);
    return out;
}

/// Bytes of so many floats.
constexpr double float_bytes(std::size_t n) { return static_cast<double>(n * sizeof(float)); }

/// Normal random numbers, the same in every run. They repeat after 65521, a prime, since drawing them is slow.
inline std::vector<float> normal(std::size_t n, unsigned seed, float deviation = 1.0f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw(0.0f, deviation);
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) out[i] = i < 65521 ? draw(random) : out[i - 65521];
    return out;
}

inline fg::matrix_view<const float> as_matrix(const std::vector<float>& data, std::size_t rows) {
    return {data.data(), rows, data.size() / rows};
}
inline fg::matrix_view<float> as_matrix(std::vector<float>& data, std::size_t rows) {
    return {data.data(), rows, data.size() / rows};
}

/// Largest difference relative to the root mean square of what is wanted; a sentence where it exceeds `tolerance`.
inline std::string compare(std::span<const float> got, std::span<const double> want, double tolerance) {
    double worst = 0, square = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double difference = std::fabs(static_cast<double>(got[i]) - want[i]);
        worst = difference > worst || std::isnan(difference) ? difference : worst;
        if (std::isnan(worst)) break;
        square += want[i] * want[i];
    }
    const double scale = std::sqrt(square / static_cast<double>(want.empty() ? 1 : want.size()));
    if (got.size() == want.size() && worst <= tolerance * scale) return {};
    return fg::concat("off by ", worst, " where values are about ", scale);
}

/// Allocates on cache-line borders, so that a time does not depend on where the heap puts the data.
template <class T>
struct cache_aligned {
    using value_type = T;
    static constexpr std::align_val_t alignment{64};
    [[nodiscard]] T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment)); }
    void deallocate(T* p, std::size_t) noexcept { ::operator delete(p, alignment); }
    friend bool operator==(cache_aligned, cache_aligned) noexcept { return true; }
};
using aligned_bytes = std::vector<std::byte, cache_aligned<std::byte>>;

/// Random blocks of format F whose values are finite and of about one size, for any format, with or without an encoder.
template <class F>
aligned_bytes random_blocks(std::size_t blocks, unsigned seed) {
    std::mt19937_64 random(seed);
    aligned_bytes out(blocks * F::block_bytes);
    // Some blocks are drawn, the rest repeat them: drawing is slow where most random scales are absurd.
    const std::size_t drawn = blocks < 1021 ? blocks : 1021;
    float values[F::block_size];
    for (std::size_t b = 0; b < drawn; ++b) {
        std::byte* block = out.data() + b * F::block_bytes;
        for (bool fit = false; !fit;) {
            for (std::size_t i = 0; i < F::block_bytes; i += 8) {
                const std::uint64_t bits = random();
                std::memcpy(block + i, &bits, F::block_bytes - i < 8 ? F::block_bytes - i : 8);
            }
            F::decode(block, values);
            float most = 0;
            bool finite = true;
            for (float value : values) {
                finite = finite && std::isfinite(value);
                most = std::fmax(most, std::fabs(value));
            }
            fit = finite && most < 2.0f && most > 0.5f;
        }
    }
    for (std::size_t done = drawn * F::block_bytes; done < out.size();) {
        const std::size_t more = done < out.size() - done ? done : out.size() - done;
        std::memcpy(out.data() + done, out.data(), more);
        done += more;
    }
    return out;
}

/// Weight matrices [rows, cols] of format F, `copies` of them one after the other in memory.
template <class F>
class weights {
public:
    weights(std::size_t rows, std::size_t cols, std::size_t copies, unsigned seed)
        : rows_(rows), cols_(cols), data_(random_blocks<F>(rows * cols / F::block_size * copies, seed)) {}
    [[nodiscard]] fg::quant::weight_view view(std::size_t copy = 0) const {
        const std::size_t row_bytes = cols_ / F::block_size * F::block_bytes;
        return {F::type, data_.data() + copy * rows_ * row_bytes, rows_, cols_, row_bytes};
    }
    /// sum over c of w[r][c] * x[c], in double.
    [[nodiscard]] double dot(std::size_t r, const float* x) const {
        const fg::quant::weight_view w = view();
        double sum = 0;
        float values[F::block_size];
        for (std::size_t b = 0; b < cols_ / F::block_size; ++b) {
            F::decode(w.row(r) + b * F::block_bytes, values);
            for (std::size_t i = 0; i < F::block_size; ++i)
                sum += static_cast<double>(values[i]) * static_cast<double>(x[b * F::block_size + i]);
        }
        return sum;
    }

private:
    std::size_t rows_, cols_;
    aligned_bytes data_;
};

/// How many copies of `bytes` exceed the last-level cache several times, within half a gibibyte: a decode step reads all of
/// its weights from memory, so a benchmark that reuses one matrix measures the cache.
inline std::size_t copies_beyond_cache(std::size_t bytes) {
    const std::size_t most = std::size_t{512} << 20;
    const std::size_t wanted = 4 * last_level_cache() < most ? 4 * last_level_cache() : most;
    const std::size_t copies = wanted / bytes + 1;
    return copies < 2 ? 2 : copies;
}

}  // namespace bench

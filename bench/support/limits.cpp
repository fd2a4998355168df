#include "limits.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "bench.hpp"

// Declared here, defined by peak.cpp for each instruction set.
namespace bench {
#define FRUGAL_DECLARE_PEAK(tag, bytes, compiled, probe) \
    template <>                                          \
    double peak_flops<frugal::isa::tag>();               \
    template <>                                          \
    double peak_int8<frugal::isa::tag>();
FRUGAL_CPU_ISAS(FRUGAL_DECLARE_PEAK)
#undef FRUGAL_DECLARE_PEAK

namespace {

constexpr std::size_t line_words = 8, huge_page = std::size_t{2} << 20;

std::uint64_t* allocate(std::size_t bytes, bool huge) {
    void* const out = std::aligned_alloc(huge_page, bytes);
    if (out == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (huge) (void)madvise(out, bytes, MADV_HUGEPAGE);
#endif
    auto* const words = static_cast<std::uint64_t*>(out);
    std::fill_n(words, bytes / sizeof(*words), 1);
    return words;
}

template <bool Prefetch>
std::uint64_t sum(const std::uint64_t* from, const std::uint64_t* end) {
    std::uint64_t sums[2 * line_words] = {};
    for (; from != end; from += 2 * line_words) {
        // Far enough ahead for the latency of memory; beyond the end nothing is read.
        if constexpr (Prefetch) {
            __builtin_prefetch(from + 64 * line_words);
            __builtin_prefetch(from + 65 * line_words);
        }
        for (std::size_t i = 0; i < 2 * line_words; ++i) sums[i] += from[i];
    }
    std::uint64_t total = 0;
    for (const std::uint64_t each : sums) total += each;
    return total;
}

/// Calls f(begin, end) for a part of `count` words on every thread, borders at pairs of cache lines.
template <class F>
void in_parts(fg::device::executor_ref executor, std::size_t count, F&& f) {
    const std::size_t parts = executor.concurrency(), pairs = count / (2 * line_words);
    executor.run(
        parts, [&](std::size_t part) { f(pairs * part / parts * 2 * line_words, pairs * (part + 1) / parts * 2 * line_words); });
}

}  // namespace

memory::memory()
    : bytes_(std::clamp(8 * last_level_cache() / huge_page * huge_page, std::size_t{128} << 20, std::size_t{512} << 20)),
      ordinary_(allocate(bytes_, false)),
      huge_(allocate(bytes_, true)) {}

memory::~memory() {
    std::free(ordinary_);
    std::free(huge_);
}

std::uint64_t* memory::next(std::uint64_t* from, std::size_t count) {
    if (at_ + count > bytes_) at_ = 0;
    std::uint64_t* const out = from + at_ / sizeof(std::uint64_t);
    at_ += (count + 127) / 128 * 128;
    return out;
}

void memory::read(fg::device::executor_ref executor, reading way, std::size_t count) {
    count = std::min(count, bytes_);
    const std::uint64_t* const from = next(way == reading::huge_pages ? huge_ : ordinary_, count);
    in_parts(executor, count / sizeof(std::uint64_t), [&](std::size_t begin, std::size_t end) {
        std::uint64_t total = way == reading::plain ? sum<false>(from + begin, from + end) : sum<true>(from + begin, from + end);
        asm volatile("" : "+r"(total));
    });
}

void memory::update(fg::device::executor_ref executor, std::size_t count) {
    count = std::min(count / 2, bytes_);
    std::uint64_t* const from = next(huge_, count);
    in_parts(executor, count / sizeof(std::uint64_t), [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) from[i] += 1;
    });
}

double read_bandwidth(fg::device::executor_ref executor, memory& from) {
    const auto seconds = executor.concurrency() == 1 ? thread_seconds : clock_seconds;
    double best = 1e300;
    for (int pass = 0; pass < 6; ++pass)
        for (const reading way : readings) {
            const double start = seconds();
            from.read(executor, way, from.bytes());
            best = std::min(best, seconds() - start);
        }
    return static_cast<double>(from.bytes()) / best;
}

std::map<std::string, peaks, std::less<>> measure_peaks() {
    std::map<std::string, peaks, std::less<>> out;
    for_each_isa([&]<class Isa>(fg::type_tag<Isa>) { out[std::string(Isa::name)] = {peak_flops<Isa>(), peak_int8<Isa>()}; });
    return out;
}

}  // namespace bench

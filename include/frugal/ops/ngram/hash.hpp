#pragma once
/// Hashes of token n-grams into rows of an embedding table, exact in 64-bit integers.
/// Source: transformers `Qwen4ExpTextNGramEmbedding`.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace ops {

/// From what the constants of one n-gram module are derived.
struct FRUGAL_FLAGGED ngram_hash_parameters {
    std::size_t ngram_size = 0;       ///< longest n-gram; orders 2 … ngram_size
    std::size_t heads_per_ngram = 0;  ///< tables for each order
    std::int64_t vocabulary = 0, eos = 0;
    std::uint64_t base = 0;  ///< head sizes are consecutive primes from here on
    std::uint64_t seed = 0;
    std::size_t module = 0;  ///< counts the n-gram modules of the model from 0
};

/// Constants of one n-gram module. Head h of order n covers table rows head_offsets[h] … + head_sizes[h] - 1;
/// heads are ordered by n-gram order, then head.
struct FRUGAL_FLAGGED ngram_hash {
    std::size_t ngram_size = 0, heads_per_ngram = 0;
    std::int64_t vocabulary = 0, eos = 0;
    std::vector<std::uint64_t> multipliers;               ///< [ngram_size]
    std::vector<std::uint64_t> head_offsets, head_sizes;  ///< [(ngram_size - 1) * heads_per_ngram]

    friend bool operator==(const ngram_hash&, const ngram_hash&) = default;

    /// Number of table rows that a token looks up.
    [[nodiscard]] std::size_t heads() const noexcept { return head_sizes.size(); }
    /// Tokens before the current one that a hash can depend on.
    [[nodiscard]] std::size_t context() const noexcept { return ngram_size == 0 ? 0 : ngram_size - 1; }
    /// Rows that the table must have at least.
    [[nodiscard]] std::uint64_t table_rows() const noexcept {
        std::uint64_t rows = 0;
        for (std::size_t h = 0; h < heads(); ++h) rows = (std::max)(rows, head_offsets[h] + head_sizes[h]);
        return rows;
    }

    /// Computes the constants from the model's parameters. Errors: invalid_argument.
    [[nodiscard]] static result<ngram_hash> derive(const ngram_hash_parameters& p);

    /// Takes the constants from a file. Errors: invalid_argument if they do not fit together, or if a product of a token and a
    /// multiplier would not fit in 63 bits.
    [[nodiscard]] static result<ngram_hash> from_constants(std::size_t ngram_size, std::size_t heads_per_ngram,
                                                           std::int64_t vocabulary, std::int64_t eos,
                                                           std::vector<std::uint64_t> multipliers,
                                                           std::vector<std::uint64_t> head_offsets,
                                                           std::vector<std::uint64_t> head_sizes);

    /// Table rows of every token: rows[t * heads() + h]. `before` holds the context() tokens before tokens[0], oldest first;
    /// where there are none, EOS. A window reaches back no further than the last EOS before its token: that EOS and all older
    /// tokens count as EOS. An EOS token itself still sees its own document.
    /// Errors: shape_mismatch, invalid_argument (a token outside the vocabulary; its index is named).
    [[nodiscard]] status rows(std::span<const std::int32_t> before, std::span<const std::int32_t> tokens,
                              std::span<std::int64_t> rows) const;

    /// Checks that every token is of the vocabulary. Errors: invalid_argument.
    [[nodiscard]] status check_tokens(std::span<const std::int32_t> tokens) const {
        for (std::size_t t = 0; t < tokens.size(); ++t)
            if (tokens[t] < 0 || tokens[t] >= vocabulary)
                return fail(errc::invalid_argument, "token ", tokens[t], " at ", t, " is not in the vocabulary of ", vocabulary);
        return {};
    }
};

namespace detail {

inline constexpr std::uint64_t splitmix_gamma = 0x9E3779B97F4A7C15u;

/// One step of SplitMix64 (Steele, Lea and Flood 2014) from state x.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::uint64_t splitmix64(std::uint64_t x) noexcept {
    x += splitmix_gamma;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

[[nodiscard]] FRUGAL_FLAGGED constexpr bool is_prime(std::uint64_t n) noexcept {
    if (n < 4) return n >= 2;
    if (n % 2 == 0) return false;
    for (std::uint64_t d = 3; d <= n / d; d += 2)
        if (n % d == 0) return false;
    return true;
}

[[nodiscard]] inline status check_ngram_sizes(std::size_t ngram_size, std::size_t heads_per_ngram, std::int64_t vocabulary,
                                              std::int64_t eos) {
    if (ngram_size < 2 || ngram_size > 64)
        return fail(errc::invalid_argument, "n-gram size is ", ngram_size, "; 2 … 64 are possible");
    if (heads_per_ngram == 0 || heads_per_ngram > 4096)
        return fail(errc::invalid_argument, "heads per n-gram are ", heads_per_ngram, "; 1 … 4096 are possible");
    if (vocabulary > (std::numeric_limits<std::int32_t>::max)())
        return fail(errc::invalid_argument, "a vocabulary of ", vocabulary, "; token ids have 32 bits");
    if (vocabulary < 1 || eos < 0 || eos >= vocabulary)
        return fail(errc::invalid_argument, "n-gram reset token ", eos, " is not in the vocabulary of ", vocabulary);
    return {};
}

}  // namespace detail

inline result<ngram_hash> ngram_hash::derive(const ngram_hash_parameters& p) {
    FRUGAL_TRY(detail::check_ngram_sizes(p.ngram_size, p.heads_per_ngram, p.vocabulary, p.eos));
    if (p.base > (std::uint64_t{1} << 40)) return fail(errc::invalid_argument, "n-gram table base is ", p.base);
    ngram_hash out{p.ngram_size, p.heads_per_ngram, p.vocabulary, p.eos, {}, {}, {}};
    constexpr auto most = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
    const std::uint64_t half = most / static_cast<std::uint64_t>(p.vocabulary) / 2;
    const std::uint64_t start = p.seed + std::uint64_t{10007} * p.module;
    for (std::size_t i = 0; i < p.ngram_size; ++i)
        out.multipliers.push_back(2 * (detail::splitmix64(start + detail::splitmix_gamma * (i + 1)) % half) + 1);
    // Modules share one sequence of primes; each numbers its rows from 0.
    const std::size_t heads = (p.ngram_size - 1) * p.heads_per_ngram;
    std::uint64_t prime = p.base, offset = 0;
    for (std::size_t skipped = 0; out.head_sizes.size() < heads; ++prime) {
        if (!detail::is_prime(prime)) continue;
        if (skipped < p.module * heads) {
            ++skipped;
            continue;
        }
        out.head_sizes.push_back(prime);
        out.head_offsets.push_back(offset);
        offset += prime;
    }
    return out;
}

inline result<ngram_hash> ngram_hash::from_constants(std::size_t ngram_size, std::size_t heads_per_ngram, std::int64_t vocabulary,
                                                     std::int64_t eos, std::vector<std::uint64_t> multipliers,
                                                     std::vector<std::uint64_t> head_offsets,
                                                     std::vector<std::uint64_t> head_sizes) {
    FRUGAL_TRY(detail::check_ngram_sizes(ngram_size, heads_per_ngram, vocabulary, eos));
    const std::size_t heads = (ngram_size - 1) * heads_per_ngram;
    if (multipliers.size() != ngram_size || head_offsets.size() != heads || head_sizes.size() != heads)
        return fail(errc::invalid_argument, multipliers.size(), " multipliers, ", head_offsets.size(), " offsets and ",
                    head_sizes.size(), " sizes for ", ngram_size, "-grams of ", heads_per_ngram, " heads");
    constexpr auto most = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
    for (const std::uint64_t m : multipliers)
        if (vocabulary > 1 && m > most / static_cast<std::uint64_t>(vocabulary - 1))
            return fail(errc::invalid_argument, "n-gram multiplier ", m, " overflows with a vocabulary of ", vocabulary);
    for (std::size_t h = 0; h < heads; ++h) {
        if (head_sizes[h] == 0) return fail(errc::invalid_argument, "n-gram head ", h, " has no rows");
        if (head_sizes[h] > most || head_offsets[h] > most - head_sizes[h])
            return fail(errc::invalid_argument, "n-gram head ", h, " ends beyond the address space");
    }
    return ngram_hash{ngram_size,           heads_per_ngram, vocabulary, eos, std::move(multipliers), std::move(head_offsets),
                      std::move(head_sizes)};
}

inline status ngram_hash::rows(std::span<const std::int32_t> before, std::span<const std::int32_t> tokens,
                               std::span<std::int64_t> rows) const {
    if (before.size() != context() || rows.size() != tokens.size() * heads())
        return fail(errc::shape_mismatch, "n-gram rows of ", tokens.size(), " tokens after ", before.size(), " into ",
                    rows.size());
    FRUGAL_TRY(check_tokens(before));
    FRUGAL_TRY(check_tokens(tokens));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
        std::uint64_t mixed = static_cast<std::uint64_t>(tokens[t]) * multipliers[0];
        bool cut = false;
        for (std::size_t back = 1; back < ngram_size; ++back) {
            std::int64_t token = eos;
            if (!cut) token = back <= t ? tokens[t - back] : before[before.size() + t - back];
            cut = cut || token == eos;
            mixed ^= static_cast<std::uint64_t>(token) * multipliers[back];
            for (std::size_t i = 0; i < heads_per_ngram; ++i) {
                const std::size_t head = (back - 1) * heads_per_ngram + i;
                rows[t * heads() + head] = static_cast<std::int64_t>(mixed % head_sizes[head] + head_offsets[head]);
            }
        }
    }
    return {};
}

}  // namespace ops

FRUGAL_NAMESPACE_END

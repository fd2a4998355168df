#pragma once
/// How the tokens of a stream are grouped into blocks: the policies, and the check that positions give the blocks by rank.
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "frugal/core/error.hpp"
#include "frugal/reuse/engine/cells.hpp"
#include "frugal/reuse/inputs/batch.hpp"
#include "frugal/reuse/inputs/sequence_set.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace reuse {

/// What blocks are cut by.
enum class token_grouping : std::uint8_t { rank, position };

/// Block b of a sequence is its visible tokens b * ratio … b * ratio + ratio - 1, the first that is still there being rank 0:
/// the rule of the reference implementation (reuse/inputs/qsa_layout.hpp), right for any first position, after holes, shifts and
/// divisions, and for images. A cell can be in one block only. Where sequences share cells and cut them differently, only the
/// sequences of the batch get blocks; if these do so, the batch is refused.
struct FRUGAL_FLAGGED group_by_rank {
    static constexpr std::string_view name = "group_by_rank";
    static constexpr token_grouping cut_by = token_grouping::rank;
};

/// The blocks of llama.cpp, cut where a position is a multiple of the ratio; see reuse/engine/blocks.hpp. A batch is refused
/// where these are not the blocks by rank: a sequence that does not begin at a multiple of the ratio, a gap or two tokens of
/// one position within a block, a block whose cells are not of the same sequences, or one past the window.
struct FRUGAL_FLAGGED group_by_position {
    static constexpr std::string_view name = "group_by_position";
    static constexpr token_grouping cut_by = token_grouping::position;
};

/// What every grouping policy says.
template <class P>
concept engine_grouping_policy = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    typename std::integral_constant<token_grouping, P::cut_by>;
};
static_assert(engine_grouping_policy<group_by_rank> && engine_grouping_policy<group_by_position>);

namespace detail {

/// The complete blocks of some sequences of a stream, each once however many sequences share it.
template <std::size_t Ratio>
class FRUGAL_FLAGGED blocks_by_rank {
public:
    /// Tokens index * Ratio … index * Ratio + Ratio - 1 of a sequence; of several that share the block, the lowest index.
    struct block {
        sequence_id sequence{};
        std::uint32_t index = 0, first_cell = 0;  ///< first_cell: the lowest cell of the block
    };
    /// A cell that two sequences have in different blocks.
    struct clash {
        cell_index at;
        sequence_id first{}, second{};
    };

    explicit blocks_by_rank(std::size_t most) { found_.reserve(most); }

    [[nodiscard]] std::span<const block> found() const noexcept { return found_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return found_.capacity() * sizeof(block); }

    /// Finds the blocks, in order of their indices; of several of one index, the one whose first cell is the last comes first.
    /// block_of: [cells of the window], holds nothing of use afterwards. Returns a clash if there is one. O(tokens).
    [[nodiscard]] std::optional<clash> find(const cells& held, const sequence_set& sequences, std::span<std::int32_t> block_of) {
        constexpr std::int32_t none = -1;
        std::fill(block_of.begin(), block_of.end(), none);
        found_.clear();
        std::optional<clash> failed;
        bool sorted = true;
        sequences.for_each([&](sequence_id s) {
            const std::span<const cell_index> tokens = held.tokens(s);
            for (std::size_t index = 0; !failed && (index + 1) * Ratio <= tokens.size(); ++index) {
                const auto members = tokens.subspan(index * Ratio, Ratio);
                if (const std::int32_t number = block_of[members.front().value]; number != none) {
                    block& known = found_[static_cast<std::size_t>(number)];
                    const auto others = held.tokens(known.sequence).subspan(known.index * Ratio, Ratio);
                    if (!std::equal(members.begin(), members.end(), others.begin())) {
                        failed = clash{members.front(), known.sequence, s};
                    } else if (index < known.index) {
                        known = {s, static_cast<std::uint32_t>(index), known.first_cell};
                        sorted = false;
                    }
                    continue;
                }
                for (const cell_index c : members) {
                    if (const std::int32_t number = block_of[c.value]; number != none && !failed)
                        failed = clash{c, found_[static_cast<std::size_t>(number)].sequence, s};
                    block_of[c.value] = static_cast<std::int32_t>(found_.size());
                }
                const block here{s, static_cast<std::uint32_t>(index),
                                 static_cast<std::uint32_t>(std::min_element(members.begin(), members.end())->value)};
                sorted = sorted && (found_.empty() || comes_before(found_.back(), here));
                found_.push_back(here);
            }
        });
        if (!sorted && !failed) std::sort(found_.begin(), found_.end(), comes_before);
        return failed;
    }

private:
    [[nodiscard]] static bool comes_before(const block& a, const block& b) noexcept {
        return a.index != b.index ? a.index < b.index : a.first_cell > b.first_cell;
    }
    std::vector<block> found_;
};

/// The sequences that have tokens in a stream.
[[nodiscard]] inline sequence_set live_sequences(const cells& held, stream_id stream) noexcept {
    sequence_set out;
    for (std::size_t i = 0; i < held.sequences(); ++i) {
        const auto s = static_cast<sequence_id>(i);
        if (held.stream_of(s) == stream && !held.tokens(s).empty()) out.add(s);
    }
    return out;
}

/// Whether blocks cut by position are a sequence's blocks by rank, in a window of `blocks` blocks. `ranked`: the tokens' indices
/// are their ranks (an image; see reuse/engine/blocks.hpp). Errors: unsupported, which names the token.
template <std::size_t Ratio>
[[nodiscard]] status check_positions(const cells& held, sequence_id s, bool ranked, bool spatial, std::size_t blocks) {
    const std::span<const cell_index> tokens = held.tokens(s);
    const auto at = [&](std::size_t rank) -> const cell& { return held.at(held.stream_of(s), tokens[rank]); };
    const auto refuse = [&](std::size_t rank, const char* what) {
        return fail(errc::unsupported, "token ", rank, " of sequence ", static_cast<std::int32_t>(s), ", at position ",
                    at(rank).position.temporal, ", ", what, ", so that blocks of ", Ratio,
                    " cut by position are not those by rank; write reuse::group_by_rank");
    };
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
        const rope_position& here = at(rank).position;
        const std::size_t place = rank % Ratio, first = rank - place;
        const bool complete = first + Ratio <= tokens.size();
        if (rank != 0 && (ranked ? here == at(rank - 1).position : here.temporal == at(rank - 1).position.temporal))
            return refuse(rank, "stands where the one before it stands");
        if (ranked) continue;
        const auto index = static_cast<std::size_t>(here.temporal);
        if (place == 0 && index % Ratio != 0) return refuse(rank, "begins a block at no multiple of the ratio");
        if (place != 0 && here.temporal != at(rank - 1).position.temporal + 1)
            return refuse(rank, "does not follow the one before it");
        if (!complete) continue;
        if (index / Ratio >= blocks) return refuse(rank, "stands past the window");
        if (at(rank).set != at(first).set) return refuse(rank, "is of other sequences than the first of its block");
        if (place == 0 && spatial && (here.height != here.temporal || here.width != here.temporal))
            return refuse(rank, "begins a block and has a height and a width of its own");
    }
    return {};
}

}  // namespace detail

}  // namespace reuse

FRUGAL_NAMESPACE_END

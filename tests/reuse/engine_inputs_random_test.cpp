#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "engine_inputs_naive.hpp"
#include "frugal/core/type_list.hpp"
#include "sanitizer.hpp"

namespace fg = frugal;
namespace reuse = frugal::reuse;
using fg::counter;
using reuse::bias_block;
using reuse::bias_cell;
using reuse::bias_none;
using reuse::causality;
using reuse::cell_index;
using reuse::cells;
using reuse::rope_position;
using reuse::sequence_id;
using test::owned_batch;
using test::seq;

namespace {

struct totals {
    std::size_t fills = 0, hits = 0, updates = 0, ranked_updates = 0, refused = 0, by_position = 0, by_position_refused = 0;
};

/// The four policies of one kind of inputs, compared with the definition after every fill.
class kind_base {
public:
    virtual ~kind_base() = default;
    virtual void fill(const cells& held, const owned_batch& batch, totals& sum) = 0;
};

template <std::size_t Ratio, causality Sees, class Bias, class Grouping = reuse::group_by_rank>
class kind : public kind_base {
public:
    kind(const cells& like, std::size_t tokens)
        : arms_(make<reuse::per_layer>(like, tokens), make<reuse::shared>(like, tokens), make<reuse::memoised>(like, tokens),
                make<reuse::incremental>(like, tokens)) {}

    void fill(const cells& held, const owned_batch& batch, totals& sum) override {
        const auto want = test::naive(held, batch, Ratio, Sees, Bias::form, Grouping::cut_by);
        constexpr bool by_position = Grouping::cut_by == reuse::token_grouping::position;
        const auto one = [&](auto& of) {
            using policy = typename std::remove_cvref_t<decltype(of)>::policy;
            CAPTURE(std::string(policy::name));
            CAPTURE(Ratio);
            fg::counters_on counters;
            const auto before = of.content();
            const fg::status done = of.fill(held, batch.view(), counters);
            if (want.refused) {
                REQUIRE(!done);
                REQUIRE(done.error().code == fg::errc::unsupported);
                ++(by_position ? sum.by_position_refused : sum.refused);
                return;
            }
            REQUIRE_MESSAGE(done.has_value(), (done ? std::string() : done.error().message));
            const auto builds = counters.read(counter::layout_builds), updates = counters.read(counter::layout_updates),
                       hits = counters.read(counter::layout_hits);
            REQUIRE(builds + updates + hits == 1);
            if constexpr (policy::kept_by != reuse::upkeep::increment) REQUIRE(updates == 0);
            if constexpr (policy::kept_by != reuse::upkeep::memo) REQUIRE(hits == 0);
            REQUIRE((of.content() == before) == (hits == 1));
            REQUIRE(test::equals(of, held, want));
            if constexpr (std::is_same_v<policy, reuse::per_layer>)
                REQUIRE(test::sees_by_rank(of, held, batch, Sees, Bias::form));
            ++(by_position ? sum.by_position : sum.fills);
            sum.hits += hits;
            sum.updates += updates;
            sum.ranked_updates += updates == 1 && want.any_ranked ? 1 : 0;
        };
        std::apply([&](auto&... arm) { (one(arm), ...); }, arms_);
    }

private:
    template <class Policy>
    using inputs = reuse::engine_inputs<Ratio, Policy, Sees, Bias, Grouping>;
    template <class Policy>
    static inputs<Policy> make(const cells& like, std::size_t tokens) {
        return inputs<Policy>::create(like, tokens).value();
    }
    std::tuple<inputs<reuse::per_layer>, inputs<reuse::shared>, inputs<reuse::memoised>, inputs<reuse::incremental>> arms_;
};

constexpr auto causal = causality::causal, non_causal = causality::non_causal;

std::vector<std::unique_ptr<kind_base>> kinds(const cells& like) {
    std::vector<std::unique_ptr<kind_base>> out;
    const auto add = [&]<class Kind>(fg::type_tag<Kind>) { out.push_back(std::make_unique<Kind>(like, 4)); };
    add(fg::type_tag<kind<1, causal, bias_cell<>>>{});
    add(fg::type_tag<kind<2, causal, bias_block<>>>{});
    add(fg::type_tag<kind<3, non_causal, bias_cell<600>>>{});
    add(fg::type_tag<kind<3, causal, bias_none>>{});
    add(fg::type_tag<kind<4, causal, bias_none>>{});
    add(fg::type_tag<kind<4, causal, bias_cell<600>>>{});
    add(fg::type_tag<kind<4, causal, bias_block<100>>>{});
    add(fg::type_tag<kind<4, non_causal, bias_none>>{});
    add(fg::type_tag<kind<4, non_causal, bias_block<>>>{});
    add(fg::type_tag<kind<5, causal, bias_block<1>>>{});
    add(fg::type_tag<kind<7, causal, bias_cell<>>>{});
    add(fg::type_tag<kind<8, causal, bias_none>>{});
    add(fg::type_tag<kind<8, non_causal, bias_cell<1>>>{});
    add(fg::type_tag<kind<2, causal, bias_cell<>, reuse::group_by_position>>{});
    add(fg::type_tag<kind<3, non_causal, bias_cell<600>, reuse::group_by_position>>{});
    add(fg::type_tag<kind<4, causal, bias_block<100>, reuse::group_by_position>>{});
    add(fg::type_tag<kind<4, causal, bias_none, reuse::group_by_position>>{});
    return out;
}

enum class manner { dense, images, wild };

/// One cache with a random history.
class history {
public:
    history(unsigned seed, manner how, std::size_t streams, std::size_t sequences, std::size_t size)
        : generator_(seed),
          how_(how),
          held_(cells::create(streams, size, sequences).value()),
          kinds_(kinds(held_)),
          padding_(std::array<std::size_t, 4>{1, 4, 16, size}[below(4)]),
          scattered_(below(2) == 0),
          plain_(how == manner::images && below(2) == 0) {}

    void run(std::size_t steps, totals& sum) {
        for (std::size_t step = 0; step < steps; ++step) {
            edit();
            const std::size_t again = below(3) == 0 ? 2 : 1;
            for (std::size_t i = 0; i < again; ++i) {
                if (batch_.positions.empty()) break;
                for (const auto& each : kinds_) each->fill(held_, batch_, sum);
            }
        }
    }

private:
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(generator_() % n); }
    sequence_id any() { return seq(below(held_.sequences())); }
    std::int32_t next_temporal(sequence_id s) {
        const auto tokens = held_.tokens(s);
        return tokens.empty() ? 0 : held_.at(held_.stream_of(s), tokens.back()).position.temporal + 1;
    }

    /// New tokens for some sequences, as many for each stream; the batch is these.
    void place() {
        const std::size_t count = 1 + below(4);
        std::vector<sequence_id> chosen;
        if (held_.streams() == 1) {
            chosen.push_back(any());
        } else {
            for (std::size_t s = 0; s < held_.sequences(); ++s)
                if (below(2) == 0) chosen.push_back(seq(s));
            if (chosen.empty()) chosen.push_back(any());
            std::shuffle(chosen.begin(), chosen.end(), generator_);
        }
        std::vector<reuse::placed_cell> placed;
        owned_batch fresh;
        const bool image = how_ == manner::images && below(4) == 0;
        for (const sequence_id s : chosen) {
            std::vector<std::size_t> free;
            for (std::size_t j = 0; j < held_.size(); ++j)
                if (held_.empty(held_.stream_of(s), cell_index(j))) free.push_back(j);
            if (free.size() < count) {
                static_cast<void>(held_.rollback(s, below(held_.tokens(s).size() + 1)));
                return requery();
            }
            if (scattered_ || below(10) == 0) std::shuffle(free.begin(), free.end(), generator_);
            std::int32_t at = next_temporal(s);
            if (how_ == manner::wild && below(6) == 0) at += static_cast<std::int32_t>(below(4));
            reuse::sequence_set members(s);
            if (how_ == manner::wild && held_.streams() == 1 && below(5) == 0) members.add(any());
            for (std::size_t i = 0; i < count; ++i) {
                const auto n = static_cast<std::int32_t>(i);
                const rope_position position = image    ? rope_position{at, at + n / 2, at + n % 2}
                                               : plain_ ? rope_position{at + n, 0, 0}
                                                        : rope_position{at + n, at + n, at + n};
                placed.push_back({held_.stream_of(s), cell_index(free[i]), position, members});
                fresh.add(s, cell_index(free[i]), position);
            }
        }
        fresh.streams = chosen.size();
        if (held_.streams() == 1) fresh.streams = 1;
        REQUIRE(held_.place(placed));
        use(std::move(fresh));
    }
    /// A batch of tokens that are there.
    void requery() {
        owned_batch fresh;
        const std::size_t count = 1 + below(3);
        std::vector<sequence_id> live;
        for (std::size_t s = 0; s < held_.sequences(); ++s)
            if (!held_.tokens(seq(s)).empty()) live.push_back(seq(s));
        if (live.empty()) {
            batch_ = {};
            return;
        }
        std::shuffle(live.begin(), live.end(), generator_);
        const std::size_t rows = held_.streams() == 1 ? 1 : 1 + below(live.size());
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t i = 0; i < count; ++i) {
                const sequence_id s = held_.streams() == 1 ? live[below(live.size())] : live[row];
                const cell_index at = held_.tokens(s)[below(held_.tokens(s).size())];
                fresh.add(s, at, held_.at(held_.stream_of(s), at).position);
            }
        fresh.streams = rows;
        use(std::move(fresh));
    }
    void use(owned_batch&& fresh) {
        batch_ = std::move(fresh);
        batch_.components = how_ == manner::dense ? 1 : how_ == manner::images ? 4 : components_;
        if (below(50) == 0) components_ = below(2) == 0 ? 1 : 3;
        batch_.window = reuse::padded_window(held_, batch_.sequences, padding_);
        if (below(8) == 0) batch_.window = std::min(held_.size(), batch_.window + 1 + below(padding_ + 4));
    }

    void edit() {
        const std::size_t choice = below(20);
        const sequence_id s = any();
        const std::size_t length = held_.tokens(s).size();
        if (choice < 9) return place();
        if (choice < 11) {
            REQUIRE(held_.rollback(s, below(std::min<std::size_t>(length, 9) + 1)));
            return below(2) == 0 ? place() : requery();
        }
        if (how_ == manner::wild) {
            const auto some = [&] { return static_cast<std::int32_t>(below(12)); };
            const reuse::position_range range{below(3) == 0 ? -1 : some(), below(3) == 0 ? -1 : some()};
            const auto cell_of = [&] { return held_.tokens(s)[below(length)]; };
            switch (choice) {
                case 11: REQUIRE(held_.remove(s, range)); break;
                case 12: static_cast<void>(held_.copy(s, any(), range)); break;
                case 13: static_cast<void>(held_.shift(s, range, some() - 4)); break;
                case 14: static_cast<void>(held_.divide(s, range, 1 + some() / 4)); break;
                case 15:
                    if (below(3) == 0) REQUIRE(held_.keep(s));
                    if (below(6) == 0) held_.clear();
                    break;
                case 16:
                    if (length != 0) REQUIRE(held_.set_extent(held_.stream_of(s), cell_of(), some() / 4, some() / 4));
                    break;
                case 17:
                    if (length != 0)
                        static_cast<void>(held_.move(held_.stream_of(s), cell_of(), cell_index(below(held_.size()))));
                    break;
                default: break;
            }
        }
        if (choice == 18) {  // a checkpoint, or back to it
            if (checkpoint_.empty() || below(2) == 0)
                checkpoint_.assign(1, held_);
            else
                held_ = checkpoint_.front();
        } else if (choice == 19 && below(4) == 0) {
            fg::byte_writer out;
            held_.save(out);
            fg::byte_reader in(out.bytes());
            REQUIRE(held_.load(in));
        }
        requery();
    }

    std::mt19937 generator_;
    manner how_;
    cells held_;
    std::vector<std::unique_ptr<kind_base>> kinds_;
    std::size_t padding_;
    bool scattered_, plain_;  // plain: text without heights and widths
    std::size_t components_ = 3;
    owned_batch batch_;
    std::vector<cells> checkpoint_;
};

}  // namespace

TEST_CASE("C37 K13 K14 random caches: all four policies give what the definition says, on every hit too, or all refuse") {
    totals dense, several, images, wild;
    for (unsigned seed = 0; seed < test::rounds(6); ++seed) {  // whole histories: a cache must fill up
        CAPTURE(seed);
        const std::size_t size = 70 - seed * 10;
        history(seed, manner::dense, 1, 1, size).run(60, dense);
        history(seed, manner::dense, 3, 3, size).run(60, dense);
        history(seed, manner::dense, 1, 3, size).run(60, several);
        history(seed, manner::images, 1, 1, size).run(60, images);
        history(seed, manner::images, 2, 2, size).run(60, images);
        history(seed, manner::images, 1, 2, size).run(40, images);
        history(seed, manner::wild, 1, 1, size).run(60, wild);
        history(seed, manner::wild, 1, 3, size).run(60, wild);
        history(seed, manner::wild, 3, 3, size).run(60, wild);
    }
    CHECK(dense.fills + several.fills + images.fills + wild.fills > test::rounds(100000));
    CHECK(dense.hits > test::rounds(500));
    CHECK(images.hits > test::rounds(500));
    CHECK(wild.hits > test::rounds(500));
    CHECK(dense.updates > test::rounds(5000));
    CHECK(several.updates > test::rounds(2000));
    CHECK(images.ranked_updates > test::rounds(700));
    CHECK(wild.updates > test::rounds(500));
    CHECK(wild.refused > test::rounds(300));
    CHECK(dense.by_position_refused + several.by_position_refused == 0);
    CHECK(images.by_position > test::rounds(8000));
    CHECK(images.by_position_refused > test::rounds(800));
    CHECK(wild.by_position > test::rounds(4000));
    CHECK(wild.by_position_refused > test::rounds(7000));
}

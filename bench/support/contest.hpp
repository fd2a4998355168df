#pragma once
// Several implementations of one operator beside each other, in one process on the same data: results are compared with a
// reference before anything is timed, rounds are interleaved, and the machine's limit is measured in the same rounds.
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "comparison.hpp"
#include "frugal/core/error.hpp"
#include "ggml.hpp"
#include "limits.hpp"

namespace bench {

/// One implementation with its data in place.
struct contender {
    std::string name;                            ///< of ours the instruction set; of the peer what it used
    bool ours = true;                            ///< else the peer's
    std::size_t calls = 1;                       ///< how often `run` computes the operator
    std::function<fg::status()> run;             ///< one timed piece
    std::function<std::vector<float>()> result;  ///< what `run` left
    double tolerance = 0;                        ///< largest difference, relative to the root mean square of what is wanted
};

/// What bounds the speed of an operator.
enum class bound { none, reading, updating, f32, int8 };

/// Contenders for the same work.
struct contest {
    std::string figure;  ///< name of its figures, dotted: "matvec.q4_k"
    std::string op, format, shape;
    std::size_t threads = 1;
    bool for_each_isa = false;  ///< its figures name the instruction set; else they are those of the most able one
    bool by_threads = false;    ///< its figures name the number of threads
    bench::bound bound = bench::bound::none;
    work cost{};                         ///< of one call
    std::vector<std::size_t> checked{};  ///< elements of a result that are compared; empty: all
    std::vector<double> want{};          ///< what these are, or what all are
    std::vector<contender> contenders{};

    /// Enters an object with `status run()` and `std::vector<float> result()`.
    template <class Side>
    void enter(std::string name, bool ours, std::shared_ptr<Side> side, double tolerance, std::size_t calls = 1) {
        contenders.push_back(
            {std::move(name), ours, calls, [side] { return side->run(); }, [side] { return side->result(); }, tolerance});
    }
};

/// How one of ours did beside the fastest of the peer's. Times are seconds a call; 0: there is none.
struct standing {
    std::string figure, op, format, shape, isa, peer;
    std::size_t threads = 1, rounds = 0;
    bench::bound bound = bench::bound::none;
    double ours = 0, ours_best = 0, theirs = 0, theirs_best = 0, limit = 0, limit_best = 0;
    double read = 0;                   ///< bound::updating: the time of reading as many bytes, which may be less
    work cost{};                       ///< of a call
    double token_share = 0;            ///< of the time of a decoded token; 0: unknown
    std::string token{};               ///< of which model that is
    double error = 0, peer_error = 0;  ///< root mean square of the difference from what is wanted, relative
    bool main_figure = true, names_isa = false, names_threads = false;

    [[nodiscard]] double ratio() const noexcept { return theirs / ours; }
    [[nodiscard]] double fraction() const noexcept { return limit / ours; }
};

/// Holds contests, and keeps how they ended.
class contests {
public:
    /// Loads the peer that FRUGAL_PEER names, if any, and measures the machine's limits for 1 … `most_threads` threads.
    /// `seconds`: about how long the rounds of one contest last.
    contests(std::size_t most_threads, double seconds);

    /// Null: nobody to compare with.
    [[nodiscard]] const peer::ggml* peer() const noexcept { return peer_.get(); }
    [[nodiscard]] std::size_t most_threads() const noexcept { return bandwidth_.size(); }
    /// One of ours whose result is wrong is an error of the program; one of the peer's is left out, and that is said.
    /// Errors: those of the contenders.
    [[nodiscard]] fg::status hold(contest what);

    [[nodiscard]] std::vector<standing>& standings() noexcept { return standings_; }
    [[nodiscard]] bool all_right() const noexcept { return wrong_.empty(); }
    void print() const;
    void print_figures() const;
    [[nodiscard]] json as_json() const;

private:
    struct lane;
    [[nodiscard]] bool check(contest& what, lane& one);
    void time(const contest& what, std::vector<lane>& lanes);
    void conclude(const contest& what, const std::vector<lane>& lanes);

    double seconds_;
    std::unique_ptr<peer::ggml> peer_;
    memory memory_;
    std::vector<double> bandwidth_;  // bytes a second, by the number of threads less one
    std::map<std::string, peaks, std::less<>> peaks_;
    std::vector<standing> standings_;
    std::vector<std::string> wrong_, notes_;
};

/// Words for `which` in tables.
std::string_view name_of(bound which);

/// Every `step`-th of so many: which results are compared where a reference for all would take too long.
std::vector<std::size_t> sample(std::size_t count, std::size_t step);

}  // namespace bench

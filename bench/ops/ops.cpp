// Every hot operator beside ggml's, in one process on the same data: `sh bench/run.sh ops`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "beside_ggml/decode_token.hpp"
#include "beside_ggml/operators.hpp"
#include "comparison.hpp"
#include "contest.hpp"
#include "frugal/device/cpu/dispatch.hpp"

namespace bench {

namespace {

/// Whether FRUGAL_BENCH_OPERATORS, names parted by spaces, asks for this one; unset, it asks for all.
bool wanted(std::string_view name) {
    const char* const listed = std::getenv("FRUGAL_BENCH_OPERATORS");
    return listed == nullptr || fg::concat(' ', listed, ' ').find(fg::concat(' ', name, ' ')) != std::string::npos;
}

fg::status run(json& out) {
    FRUGAL_TRY(fg::device::select_isa<fg::isa::all>());
    contests all(std::max(std::size_t{2}, executor().concurrency()), 0.7);
#define FRUGAL_MEASURE_OPERATOR(name) \
    if (wanted(#name)) FRUGAL_TRY(measure_##name(all));
    FRUGAL_BENCH_OPERATORS(FRUGAL_MEASURE_OPERATOR)
#undef FRUGAL_MEASURE_OPERATOR
    add_token_shares(all);
    all.print();
    all.print_figures();
    out = all.as_json();
    return all.all_right() ? fg::status{} : fg::status(fg::fail(fg::errc::invalid_argument, "some of our results are wrong"));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("ops", argc, argv, bench::run); }

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

/// Of the operators that neither memory nor arithmetic bounds: which takes the most of a decoded token.
void print_largest_small_share(contests& all) {
    const standing* most = nullptr;
    for (const standing& each : all.standings())
        if (each.bound == bound::none && each.token_share > (most != nullptr ? most->token_share : 0)) most = &each;
    if (most == nullptr) return;
    std::printf("the largest of the small operators: %s, of a token of %s\n", most->figure.c_str(), most->token.c_str());
    std::printf("figure small.largest_token_share %.4g\n", most->token_share);
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
    print_largest_small_share(all);
    out = all.as_json();
    return all.all_right() ? fg::status{} : fg::status(fg::fail(fg::errc::invalid_argument, "some of our results are wrong"));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_with_json("ops", argc, argv, bench::run); }

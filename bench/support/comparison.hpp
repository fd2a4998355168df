#pragma once
// What programs share that compare whole runs instead of timing one operator each.
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "frugal/core/error.hpp"

namespace bench {

/// The middle one; of an even number the mean of both. Precondition: not empty.
double median(std::vector<double> values);

/// Seconds by the clock that a run is measured with: processor time of this thread where there is one thread, else the clock.
double measured_seconds();

using json = nlohmann::ordered_json;

/// What was measured with, for bench/plot.py: commit, compiler, and threads unless each record names them (0).
json context(std::size_t threads);

/// The main function of such a program: `run` measures, prints, and fills the object that is written to the file that
/// bench/run.sh names, if it names one. Returns the exit code.
int run_with_json(std::string_view program, int argc, char** argv, frugal::status (*run)(json& out));

}  // namespace bench

#pragma once
// What programs share that compare whole runs instead of timing one operator each.
#include <string_view>
#include <vector>

#include "frugal/core/error.hpp"

namespace bench {

/// The middle one; of an even number the mean of both. Precondition: not empty.
double median(std::vector<double> values);

/// Seconds by the clock that a run is measured with: processor time of this thread where there is one thread, else the clock.
double measured_seconds();

/// The main function of such a program: takes the file that bench/run.sh wants JSON in, or no argument, and calls `run` with it
/// (null: none). Returns the exit code.
int run_with_json(std::string_view program, int argc, char** argv, frugal::status (*run)(const char* json));

}  // namespace bench

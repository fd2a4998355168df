#include "comparison.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

#include "bench.hpp"
#include "limits.hpp"

namespace bench {

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t n = values.size();
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double measured_seconds() { return executor().concurrency() == 1 ? thread_seconds() : clock_seconds(); }

int run_with_json(std::string_view program, int argc, char** argv, fg::status (*run)(const char* json)) {
    const std::string name(program);
    const char* json = nullptr;
    constexpr std::string_view option = "--benchmark_out=";
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word.starts_with(option))
            json = argv[i] + option.size();
        else if (!word.starts_with("--benchmark_out_format=")) {
            std::fprintf(stderr, "%s takes no option %s\n", name.c_str(), argv[i]);
            return 2;
        }
    }
    if (const fg::status done = run(json); !done) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), done.error().message.c_str());
        return 1;
    }
    return 0;
}

}  // namespace bench

#include "comparison.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
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

namespace {

/// The processor's name as Linux knows it.
std::string processor() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
    return "unknown";
}

}  // namespace

json context(std::size_t threads) {
    json out{{"commit", FRUGAL_BENCH_COMMIT}, {"compiler", FRUGAL_BENCH_COMPILER}, {"processor", processor()}};
    if (threads != 0) out["threads"] = std::to_string(threads);
    return out;
}

int run_with_json(std::string_view program, int argc, char** argv, fg::status (*run)(json& out)) {
    const std::string name(program);
    const char* path = nullptr;
    constexpr std::string_view option = "--benchmark_out=";
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word.starts_with(option))
            path = argv[i] + option.size();
        else if (!word.starts_with("--benchmark_out_format=")) {
            std::fprintf(stderr, "%s takes no option %s\n", name.c_str(), argv[i]);
            return 2;
        }
    }
    json out;
    if (const fg::status done = run(out); !done) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), done.error().message.c_str());
        return 1;
    }
    if (path == nullptr || out.is_null()) return 0;  // nothing to draw
    std::ofstream file(path);
    file << out.dump(1) << '\n';
    file.close();
    if (file) return 0;
    std::fprintf(stderr, "%s: cannot write %s\n", name.c_str(), path);
    return 1;
}

}  // namespace bench

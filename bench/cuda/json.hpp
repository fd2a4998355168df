#pragma once
/// What bench_cuda measured, as JSON that bench/plot.py draws.
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace bench {

/// What an operator cannot avoid.
struct work {
    double bytes = 0, operations = 0;
    bool beside_cublas = false;  ///< its operations a second are compared with those of cuBLAS in bfloat16
};

/// One measured thing: op/format/form/shape.
struct row {
    std::string name;
    double microseconds = 0;
    work what;
};

/// What a machine can do; 0 where it was not measured.
struct limits {
    std::string device;
    double bytes_a_second = 0;       ///< that a kernel reads which does nothing else
    double operations_a_second = 0;  ///< of a large product of bfloat16 by cuBLAS
};

[[nodiscard]] inline double bandwidth_fraction(const row& r, const limits& of) {
    return r.what.bytes / r.microseconds * 1e6 / of.bytes_a_second;
}
[[nodiscard]] inline double cublas_fraction(const row& r, const limits& of) {
    return r.what.operations / r.microseconds * 1e6 / of.operations_a_second;
}
[[nodiscard]] inline bool has_cublas_fraction(const row& r, const limits& of) {
    return r.what.beside_cublas && of.operations_a_second > 0;
}

/// Whether it could be written.
[[nodiscard]] inline bool write_json(const char* path, const limits& of, const std::vector<row>& rows) {
    std::FILE* const file = std::fopen(path, "w");
    if (file == nullptr) return false;
    std::fprintf(file, "{\"context\": {\"processor\": \"%s\", \"read_gigabytes_per_second\": \"%.1f\"", of.device.c_str(),
                 of.bytes_a_second / 1e9);
    if (of.operations_a_second > 0)
        std::fprintf(file, ", \"cublas_bf16_peak_gigaflops\": \"%.0f\"", of.operations_a_second / 1e9);
    std::fprintf(file, "},\n \"benchmarks\": [");
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const row& r = rows[i];
        std::fprintf(file,
                     "%s\n  {\"name\": \"%s\", \"run_type\": \"iteration\", \"family_index\": %zu, \"real_time\": %.4f, "
                     "\"time_unit\": \"us\"",
                     i == 0 ? "" : ",", r.name.c_str(), i, r.microseconds);
        if (r.what.bytes > 0) std::fprintf(file, ", \"of_bandwidth\": %.5f", bandwidth_fraction(r, of));
        if (r.what.operations > 0)
            std::fprintf(file, ", \"operations_per_second\": %.6g", r.what.operations / r.microseconds * 1e6);
        if (has_cublas_fraction(r, of)) std::fprintf(file, ", \"of_peak\": %.5f", cublas_fraction(r, of));
        std::fprintf(file, "}");
    }
    std::fprintf(file, "\n ]}\n");
    return std::fclose(file) == 0;
}

}  // namespace bench

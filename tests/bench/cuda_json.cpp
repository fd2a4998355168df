// Writes what bench_cuda would write of a machine that does not exist: check_cuda.py draws it.
#include "../../bench/cuda/json.hpp"

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const bench::limits of{"A GPU, compute capability 9.0", 4e12, 8e14};
    const std::vector<bench::row> rows{{"matmul/q4_k/q8/4096x4096x1", 2.5, {9e6, 3.4e7, false}},
                                       {"matmul/q4_k/bf16_tiles/4096x4096x512", 43.0, {0, 1.72e10, true}},
                                       {"qsa/bf16/layer/32768", 10.0, {1e7, 0, false}}};
    return bench::write_json(argv[1], of, rows) ? 0 : 1;
}

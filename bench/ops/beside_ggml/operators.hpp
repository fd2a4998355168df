#pragma once
// The operators that are measured beside ggml's. A new one = one file here, and one line in this list.
#include <cstddef>

#include "contest.hpp"
#include "frugal/core/error.hpp"

#define FRUGAL_BENCH_OPERATORS(X) \
    X(matvec)                     \
    X(matmul)                     \
    X(batch)                      \
    X(gated_delta_rule)           \
    X(conv1d)                     \
    X(attention)                  \
    X(moe)                        \
    X(block_select)               \
    X(small)                      \
    X(hyper_connection)           \
    X(embedding)                  \
    X(sampling)

namespace bench {

#define FRUGAL_DECLARE_OPERATOR(name) fg::status measure_##name(contests& all);
FRUGAL_BENCH_OPERATORS(FRUGAL_DECLARE_OPERATOR)
#undef FRUGAL_DECLARE_OPERATOR

}  // namespace bench

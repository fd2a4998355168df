// flags: -O2
// fails FAST: frugal: fast math breaks these kernels; add -fno-fast-math last for this file (CMake: its property COMPILE_OPTIONS)
// flags FAST: -ffast-math
// fails OFAST: frugal: fast math breaks these kernels; add -fno-fast-math last
// flags OFAST: -Ofast -march=x86-64-v3
// fails FINITE: frugal: fast math breaks these kernels; add -fno-fast-math last
// flags FINITE: -ffinite-math-only
// fails UNSAFE: frugal: fast math breaks these kernels; add -fno-fast-math last
// flags UNSAFE: -funsafe-math-optimizations
// only UNSAFE: gcc
// fails ASSOCIATIVE: frugal: fast math breaks these kernels; add -fno-fast-math last
// flags ASSOCIATIVE: -fassociative-math -fno-signed-zeros -fno-trapping-math
// only ASSOCIATIVE: gcc
// fails RECIPROCAL: frugal: fast math breaks these kernels; add -fno-fast-math last
// flags RECIPROCAL: -freciprocal-math
// only RECIPROCAL: gcc
#include "frugal/ops/activation/activation.hpp"

float activated(float x) { return frugal::ops::silu(x); }

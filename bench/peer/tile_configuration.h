#pragma once
// Included before everything else where ggml is built by g++ 12 or older for a processor with AMX: the compiler believes that
// loading a tile configuration reads 8 of its 64 bytes and drops the stores to the rest.
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
static inline void tile_configuration_written(const void* at) { __asm__ volatile("" : : "r"(at) : "memory"); }
#define _tile_loadconfig(at) (tile_configuration_written(at), (_tile_loadconfig)(at))
#endif

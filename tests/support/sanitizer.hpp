#pragma once
/// TEST_ASAN, TEST_TSAN: whether the address or the thread sanitizer is on. What tests do less of under one.
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#ifndef TEST_ASAN
#define TEST_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#define TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN 1
#endif
#endif
#ifndef TEST_TSAN
#define TEST_TSAN 0
#endif

namespace test {

inline constexpr bool under_thread_sanitizer = TEST_TSAN != 0;
inline constexpr bool under_sanitizer = TEST_ASAN != 0 || under_thread_sanitizer;

/// Of a repetition that looks for wrong results: all of it, or under a sanitizer an eighth. It looks for faults of memory and of
/// threads, which the first rounds meet as well as the last.
constexpr std::size_t rounds(std::size_t all) { return under_sanitizer ? (all + 7) / 8 : all; }

}  // namespace test

// Chunks cut from slabs: whose they are, what they hold, and how much memory is taken for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "frugal/attention/chunk_arena.hpp"
#include "frugal/attention/token_store.hpp"

using frugal::errc;
using frugal::attention::chunk_arena;
using frugal::attention::token_store;
using chunk = std::shared_ptr<std::byte>;

namespace {

constexpr std::size_t page = std::size_t{2} << 20, size = page / 16;

chunk take(chunk_arena& arena) {
    auto out = arena.take();
    REQUIRE(out);
    return *std::move(out);
}
std::uintptr_t address(const chunk& one) { return reinterpret_cast<std::uintptr_t>(one.get()); }
bool all(const chunk& one, std::size_t bytes, std::byte value) {
    return std::all_of(one.get(), one.get() + bytes, [&](std::byte each) { return each == value; });
}

}  // namespace

TEST_CASE("chunk_arena: chunks are zero, aligned and apart, of any size") {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{69632}, page + 1}) {
        chunk_arena arena(bytes);
        std::vector<chunk> held;
        for (int i = 0; i < 40; ++i) {
            held.push_back(take(arena));
            CHECK(address(held.back()) % 64 == 0);
            REQUIRE(all(held.back(), bytes, std::byte{}));
            std::memset(held.back().get(), i + 1, bytes);
        }
        for (int i = 0; i < 40; ++i) REQUIRE(all(held[static_cast<std::size_t>(i)], bytes, static_cast<std::byte>(i + 1)));
    }
}

TEST_CASE("chunk_arena: beyond the first huge page's worth of chunks, each lies in a huge page of chunks") {
    chunk_arena arena(size);
    std::vector<chunk> held;
    for (int i = 0; i < 48; ++i) held.push_back(take(arena));
    for (const std::size_t first : {std::size_t{16}, std::size_t{32}})
        for (std::size_t i = first; i < first + 16; ++i) CHECK(address(held[i]) / page == address(held[first]) / page);
}

TEST_CASE("chunk_arena: at most half of the memory is spare while chunks are only taken") {
    chunk_arena arena(size);
    std::vector<chunk> held;
    for (std::size_t i = 1; i <= 100; ++i) {
        held.push_back(take(arena));
        CHECK(arena.bytes() >= i * size);
        CHECK(arena.bytes() < std::min(2 * i * size, i * size + page) + size);
    }
}

TEST_CASE("chunk_arena: a chunk let go is taken again, as zeros; slabs without chunks are given back, but the newest") {
    chunk_arena arena(size);
    std::vector<chunk> held;
    for (int i = 0; i < 32; ++i) held.push_back(take(arena));
    const std::size_t full = arena.bytes();
    CHECK(full == 2 * page);
    for (int i = 0; i < 100; ++i) {
        const std::size_t which = 16 + static_cast<std::size_t>(i * 7 % 16);  // of the slab that others hold too
        std::memset(held[which].get(), 5, size);
        const auto before = address(held[which]);
        held[which].reset();
        held[which] = take(arena);
        CHECK(address(held[which]) == before);
        REQUIRE(all(held[which], size, std::byte{}));
    }
    // Several at once come back in any order, each once.
    std::vector<std::uintptr_t> gone, back;
    for (std::size_t i = 16; i < 30; i += 3) {
        gone.push_back(address(held[i]));
        held[i].reset();
    }
    for (std::size_t i = 16; i < 30; i += 3) back.push_back(address(held[i] = take(arena)));
    std::sort(gone.begin(), gone.end());
    std::sort(back.begin(), back.end());
    CHECK(gone == back);
    CHECK(arena.bytes() == full);
    held.erase(held.begin() + 4, held.end());
    CHECK(arena.bytes() == page + 4 * size);
    held.clear();
    CHECK(arena.bytes() == page);
    held.push_back(take(arena));
    CHECK(arena.bytes() == page);
}

TEST_CASE("chunk_arena: chunks outlive it; a size beyond the address space is an error") {
    std::optional<chunk_arena> arena(size);
    const chunk kept = take(*arena);
    std::memset(kept.get(), 9, size);
    arena.reset();
    CHECK(all(kept, size, std::byte{9}));
    chunk_arena impossible(std::numeric_limits<std::size_t>::max() - 5);
    CHECK(impossible.take().error().code == errc::out_of_memory);
}

TEST_CASE("chunk_arena: threads take, fill and let go at once") {
    chunk_arena arena(4096);
    std::vector<std::thread> threads;
    std::vector<int> wrong(3);
    for (std::size_t t = 0; t < wrong.size(); ++t)
        threads.emplace_back([&, t] {
            std::vector<chunk> held(9);
            for (std::size_t i = 0; i < 2000; ++i) {
                chunk& one = held[i * 5 % held.size()];
                if (one != nullptr && !all(one, 64, static_cast<std::byte>(t + 1))) ++wrong[t];
                auto fresh = arena.take();
                if (!fresh || !all(*fresh, 4096, std::byte{})) {
                    ++wrong[t];
                    break;
                }
                one = *std::move(fresh);
                std::memset(one.get(), static_cast<int>(t + 1), 64);
            }
        });
    for (std::thread& each : threads) each.join();
    CHECK(wrong == std::vector<int>(3));
}

TEST_CASE("token_store: copies that write apart for long keep their rows, and no memory piles up") {
    token_store<float> store(256);
    std::vector<float> row(256);
    const auto append = [&](token_store<float>& to, float value) {
        std::fill(row.begin(), row.end(), value);
        REQUIRE(to.reserve(1));
        to.write(to.size(), row.data());
        to.commit(1);
    };
    for (int i = 0; i < 200; ++i) append(store, static_cast<float>(i));
    for (int turn = 0; turn < 300; ++turn) {
        const token_store<float> before = store;  // as a pass that may be taken back does
        append(store, -1.0f);
        REQUIRE(before.size() == 200);
        REQUIRE(before.row(199)[255] == 199.0f);
        REQUIRE(store.row(200)[0] == -1.0f);
        if (turn % 2 == 0)
            store = before;
        else
            store.truncate(200);
    }
    CHECK(store.bytes() == 2 * 128 * 256 * sizeof(float));
    for (std::size_t i = 0; i < 200; ++i) REQUIRE(store.row(i)[7] == static_cast<float>(i));
}

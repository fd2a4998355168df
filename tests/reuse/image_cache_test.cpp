// Images that depend on the token: the most recently used ones within a budget, or within what the device has.
#include "frugal/reuse/weights/image_cache.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

using namespace frugal;

namespace {

/// A device of `capacity` bytes whose images know what they were made for.
struct device_memory {
    std::size_t capacity = 0, used = 0, asked = 0, made = 0;
};
class image {
public:
    image(device_memory& memory, std::size_t made_for, std::size_t bytes) : memory_(&memory), key(made_for), bytes_(bytes) {
        memory.used += bytes;
    }
    image(image&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)), key(other.key), bytes_(other.bytes_) {}
    image& operator=(image&&) = delete;
    ~image() {
        if (memory_ != nullptr) memory_->used -= bytes_;
    }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

private:
    device_memory* memory_;

public:
    std::size_t key;

private:
    std::size_t bytes_;
};

auto maker(device_memory& memory, std::size_t key, std::size_t bytes) {
    return [&memory, key, bytes]() -> result<image> {
        ++memory.asked;
        if (memory.used + bytes > memory.capacity) return fail(errc::out_of_memory, "full");
        ++memory.made;
        return image(memory, key, bytes);
    };
}

}  // namespace

TEST_CASE("image cache: before an image is dropped the caller may finish with it, and only then") {
    device_memory memory{.capacity = 25};
    reuse::image_cache<image> cache(8, 100);
    std::size_t called = 0, alive = 0;
    const auto get = [&](std::size_t key) {
        const std::size_t used = memory.used;
        return cache.get(key, 10, maker(memory, key, 10), [&] {
            ++called;
            alive = memory.used == used ? memory.used : 0;
        });
    };
    REQUIRE(get(0).has_value());
    REQUIRE(get(1).has_value());
    REQUIRE(get(0).has_value());
    CHECK(called == 0);
    REQUIRE(get(2).has_value());  // the device is full
    CHECK(called == 1);
    CHECK(alive == 20);
    CHECK(cache.holds(0));
    CHECK(!cache.holds(1));
    REQUIRE(get(3).has_value());  // the budget is what it was full with
    CHECK(called == 2);
    CHECK(alive == 20);
}

TEST_CASE("image cache: filled ahead as far as there is room, and nothing dropped for it") {
    device_memory memory{.capacity = 1000};
    reuse::image_cache<image> cache(8, 35);
    const auto fill = [&](std::size_t key, std::size_t bytes, std::size_t known) {
        const auto there = cache.fill(key, known, maker(memory, key, bytes));
        REQUIRE(there.has_value());
        return *there;
    };
    CHECK(fill(0, 10, 0));
    CHECK(fill(1, 10, 10));
    CHECK(fill(1, 10, 10));
    CHECK(memory.made == 2);
    CHECK_FALSE(fill(2, 16, 16));  // known not to fit: not made
    CHECK(memory.asked == 2);
    CHECK_FALSE(fill(2, 16, 0));  // made in vain
    CHECK(memory.used == 20);
    CHECK(fill(3, 15, 0));
    CHECK_FALSE(fill(4, 1, 0));  // no room at all
    CHECK(memory.asked == 4);
    CHECK(cache.bytes() == 35);
    CHECK(cache.evictions() == 0);
    // The first that was filled is the first to go.
    REQUIRE(cache.get(5, 10, maker(memory, 5, 10)).has_value());
    CHECK(!cache.holds(0));
    CHECK(cache.holds(1));
    CHECK(cache.holds(3));

    device_memory small{.capacity = 25};
    reuse::image_cache<image> other(8, 1000);
    CHECK(other.fill(0, 10, maker(small, 0, 10)).value());
    CHECK(other.fill(1, 10, maker(small, 1, 10)).value());
    CHECK_FALSE(other.fill(2, 10, maker(small, 2, 10)).value());  // the device is full: its budget from now on
    CHECK_FALSE(other.fill(3, 10, maker(small, 3, 10)).value());
    CHECK(small.asked == 3);
    const auto broken = other.fill(4, 0, []() -> result<image> { return fail(errc::device_lost, "gone"); });
    CHECK(broken.value() == false);
    other.retry();
    const auto asked = other.fill(4, 0, []() -> result<image> { return fail(errc::device_lost, "gone"); });
    REQUIRE_FALSE(asked.has_value());
    CHECK(asked.error().code == errc::device_lost);
}

TEST_CASE("image cache: against a list of keys in the order of their use") {
    std::mt19937 random(7);
    for (const std::size_t budget : {10u, 30u, 45u, 1000u}) {
        CAPTURE(budget);
        device_memory memory{.capacity = 100000};
        reuse::image_cache<image> cache(40, budget);
        std::vector<std::size_t> order;  // oldest first
        for (int step = 0; step < 1000; ++step) {
            const std::size_t key = random() % 40;
            const std::size_t made = memory.made;
            const auto got = cache.get(key, 10, maker(memory, key, 10));
            REQUIRE(got.has_value());
            CHECK((*got)->key == key);
            const auto at = std::find(order.begin(), order.end(), key);
            CHECK((memory.made == made) == (at != order.end()));
            if (at != order.end())
                order.erase(at);
            else if (order.size() == budget / 10)
                order.erase(order.begin());
            order.push_back(key);
            CHECK(cache.bytes() == order.size() * 10);
            CHECK(memory.used == cache.bytes());
            for (std::size_t k = 0; k < 40; ++k)
                CHECK(cache.holds(k) == (std::find(order.begin(), order.end(), k) != order.end()));
        }
    }
}

TEST_CASE("C58 image cache: a full device is asked in vain once, then its size is known") {
    device_memory memory{.capacity = 35};
    reuse::image_cache<image> cache(10, 1000);
    for (std::size_t key = 0; key < 3; ++key) REQUIRE(cache.get(key, 10, maker(memory, key, 10)));
    CHECK(memory.asked == 3);
    REQUIRE(cache.get(3, 10, maker(memory, 3, 10)));
    CHECK(memory.asked == 5);  // refused, 0 dropped, made
    CHECK(cache.evictions() == 1);
    for (std::size_t key = 4; key < 10; ++key) REQUIRE(cache.get(key, 10, maker(memory, key, 10)));
    CHECK(memory.asked == 11);
    memory.capacity = 1000;
    cache.retry();
    for (std::size_t key = 0; key < 10; ++key) REQUIRE(cache.get(key, 10, maker(memory, key, 10)));
    CHECK(cache.bytes() == 100);
}

TEST_CASE("C58 image cache: no room at all is an error, and asks no more") {
    device_memory memory{.capacity = 5};
    reuse::image_cache<image> cache(4, 1000);
    CHECK(cache.get(0, 10, maker(memory, 0, 10)).error().code == errc::out_of_memory);
    CHECK(cache.get(1, 10, maker(memory, 1, 10)).error().code == errc::out_of_memory);
    CHECK(memory.asked == 1);
    CHECK(memory.used == 0);
    cache.clear();
    memory.capacity = 10;
    CHECK(cache.get(1, 10, maker(memory, 1, 10)).has_value());
}

TEST_CASE("image cache: an error other than a full device drops nothing") {
    device_memory memory{.capacity = 100};
    reuse::image_cache<image> cache(4, 1000);
    REQUIRE(cache.get(0, 10, maker(memory, 0, 10)));
    const auto broken = [&]() -> result<image> { return fail(errc::device_failed, "no"); };
    CHECK(cache.get(1, 10, broken).error().code == errc::device_failed);
    CHECK(cache.holds(0));
    CHECK_FALSE(cache.holds(1));
}

TEST_CASE("A11 A13 image cache: other weights or another generation of the device drop everything") {
    device_memory memory{.capacity = 100};
    reuse::image_cache<image> cache(4, 1000);
    const reuse::weight_version version = reuse::next_weight_version();
    cache.validate(version, 0);
    REQUIRE(cache.get(0, 10, maker(memory, 0, 10)));
    cache.validate(version, 0);
    CHECK(cache.holds(0));
    cache.validate(version, 1);
    CHECK_FALSE(cache.holds(0));
    CHECK(memory.used == 0);
    REQUIRE(cache.get(0, 10, maker(memory, 0, 10)));
    cache.validate(reuse::next_weight_version(), 1);
    CHECK(cache.bytes() == 0);
}

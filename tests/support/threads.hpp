#pragma once
/// An executor that spreads tasks over threads it starts for every call, in an order that differs from call to call.
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "frugal/device/cpu/executor.hpp"

namespace test {

class threads {
public:
    explicit threads(std::size_t count) : count_(count) {}
    [[nodiscard]] std::size_t concurrency() const { return count_; }
    void run(std::size_t n, frugal::device::task_ref f) {
        std::atomic<std::size_t> next{0};
        std::vector<std::thread> running;
        for (std::size_t i = 0; i < count_; ++i)
            running.emplace_back([&] {
                for (std::size_t task = next++; task < n; task = next++) f(n - 1 - task);
            });
        for (std::thread& thread : running) thread.join();
    }

private:
    std::size_t count_;
};

static_assert(frugal::device::executor<threads>);

}  // namespace test

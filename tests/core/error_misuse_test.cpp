// Asserts are on here, whatever the build; error_test.cpp of the same program has those of the build.
#undef NDEBUG
#include "frugal/core/error.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <string>
#include <utility>

namespace {

using frugal::errc;
using frugal::result;
using frugal::status;

struct ending {
    bool aborted = false;
    std::string said;  // on standard error
};

/// How a process ends that runs `body`.
template <class Body>
ending run_apart(Body&& body) {
    int ends[2] = {};
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        std::signal(SIGABRT, SIG_DFL);  // doctest has a handler of its own
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    ending out;
    char buffer[256];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) out.said.append(buffer, static_cast<std::size_t>(n));
    close(ends[0]);
    int how = 0;
    REQUIRE(waitpid(child, &how, 0) == child);
    out.aborted = WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
    return out;
}

result<std::string> failed() { return frugal::fail(errc::io, "cannot open ", "nope"); }

volatile std::size_t sink = 0;

}  // namespace

TEST_CASE("a failed result's value ends the program with the error's own text") {
    const auto check = [](auto&& use) {
        const ending got = run_apart(use);
        CHECK(got.aborted);
        CHECK(got.said == "frugal: the value of a failed result was used without testing it: input/output error: cannot open nope\n");
    };
    check([] { sink = failed()->size(); });
    check([] { sink = failed().value().size(); });
    check([] { sink = (*failed()).size(); });
    check([] {
        auto held = failed();
        sink = held->size();
    });
    check([] {
        auto held = failed();
        sink = held.value().size();
    });
    check([] {
        auto held = failed();
        sink = (*held).size();
    });
    check([] {
        const auto held = failed();
        sink = held->size();
    });
    check([] {
        const auto held = failed();
        sink = held.value().size();
    });
    check([] {
        const auto held = failed();
        sink = (*held).size();
    });
}

TEST_CASE("the error of a success, and a result that was moved from, end the program") {
    const auto check = [](auto&& use) {
        const ending got = run_apart(use);
        CHECK(got.aborted);
        CHECK(got.said == "frugal: error() of a result without an error, or a result used after its content was moved away\n");
    };
    check([] { sink = result<int>(1).error().message.size(); });
    check([] { sink = status().error().message.size(); });
    check([] {
        const status good;
        sink = good.error().message.size();
    });
    check([] {
        const result<int> good = 1;
        sink = good.error().message.size();
    });
    check([] {
        auto held = failed();
        const auto taken = std::move(held).release_error();
        sink = held->size();
    });
}

TEST_CASE("right use of a result passes the asserts") {
    const ending got = run_apart([] {
        auto good = result<std::string>(std::string("four"));
        sink = good->size() + (*good).size() + good.value().size();
        if (auto bad = failed(); !bad) sink = bad.error().message.size();
    });
    CHECK_FALSE(got.aborted);
    CHECK(got.said.empty());
}

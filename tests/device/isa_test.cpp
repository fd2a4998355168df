// Probes of instruction sets, and the choice among them at run time.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "frugal/device/cpu/cpu.hpp"
#include "frugal/device/cpu/dispatch.hpp"

namespace {

namespace fg = frugal;
using fg::type_list;
using fg::type_tag;

// No processor has it, so every machine has an instruction set that it cannot run.
struct never {
    static constexpr std::string_view name = "never";
    static constexpr std::size_t vector_bytes = 16;
    static constexpr bool fused = false;
};

std::set<std::string> kernel_flags() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        if (line.rfind("flags", 0) != 0) continue;
        std::istringstream words(line.substr(line.find(':') + 1));
        std::set<std::string> out;
        for (std::string word; words >> word;) out.insert(word);
        return out;
    }
    return {};
}

bool all_of(const std::set<std::string>& have, const std::vector<std::string>& want) {
    for (const auto& each : want)
        if (!have.contains(each)) return false;
    return true;
}

class environment {
public:
    explicit environment(const char* value) {
        const char* before = std::getenv("FRUGAL_ISA");
        had_ = before != nullptr;
        if (had_) before_ = before;
        if (value != nullptr) {
            setenv("FRUGAL_ISA", value, 1);
        } else {
            unsetenv("FRUGAL_ISA");
        }
    }
    ~environment() {
        if (had_) {
            setenv("FRUGAL_ISA", before_.c_str(), 1);
        } else {
            unsetenv("FRUGAL_ISA");
        }
    }

private:
    bool had_ = false;
    std::string before_;
};

TEST_CASE("probes agree with the flags that the operating system lists") {
    const auto flags = kernel_flags();
    if (flags.empty()) return;  // not x86 Linux
    CHECK(fg::isa::supported<fg::isa::baseline>());
    CHECK(fg::isa::supported<fg::isa::avx2>() == all_of(flags, {"avx", "avx2", "fma", "f16c"}));
    CHECK(fg::isa::supported<fg::isa::avx512>() == all_of(flags, {"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe",
                                                                  "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}));
}

TEST_CASE("a tag outside the table is not supported") { CHECK_FALSE(fg::isa::supported<never>()); }

TEST_CASE("the most able instruction set of the machine is chosen") {
    const environment unset(nullptr);
    const auto chosen = fg::device::select_isa<fg::isa::all>();
    REQUIRE(chosen);
    const std::string possible = fg::device::supported_isas<fg::isa::all>();
    CHECK(possible.substr(possible.rfind(' ') == std::string::npos ? 0 : possible.rfind(' ') + 1) == *chosen);
    CHECK(possible.rfind("baseline", 0) == 0);

    // Order in the list decides, and what the machine lacks is passed over.
    const auto only = fg::device::select_isa<type_list<fg::isa::baseline, never>>();
    REQUIRE(only);
    CHECK(*only == "baseline");
}

TEST_CASE("FRUGAL_ISA forces one") {
    const environment forced("baseline");
    const auto chosen = fg::device::select_isa<fg::isa::all>();
    REQUIRE(chosen);
    CHECK(*chosen == "baseline");
    // What the caller says comes before the environment.
    const std::string possible = fg::device::supported_isas<fg::isa::all>();
    if (possible.find("avx2") != std::string::npos) CHECK(*fg::device::select_isa<fg::isa::all>("avx2") == "avx2");

    const environment empty("");
    CHECK(*fg::device::select_isa<fg::isa::all>() == *fg::device::select_isa<fg::isa::all>(""));
}

TEST_CASE("an unknown or impossible instruction set is an error that lists what is possible") {
    const environment wrong("avx9");
    const auto unknown = fg::device::select_isa<fg::isa::all>();
    REQUIRE_FALSE(unknown);
    CHECK(unknown.error().code == fg::errc::invalid_argument);
    CHECK(unknown.error().message == "instruction set 'avx9' is unknown; possible here: " + fg::device::supported_isas<>());

    const auto impossible = fg::device::select_isa<type_list<fg::isa::baseline, never>>("never");
    REQUIRE_FALSE(impossible);
    CHECK(impossible.error().code == fg::errc::unsupported);
    CHECK(impossible.error().message == "this machine cannot run instruction set 'never'; possible here: baseline");

    const auto nothing = fg::device::select_isa<type_list<never>>("");
    REQUIRE_FALSE(nothing);
    CHECK(nothing.error().code == fg::errc::unsupported);

    bool called = false;
    const auto status = fg::device::dispatch<fg::isa::all>([&]<class Isa>(type_tag<Isa>) { called = true; });
    CHECK_FALSE(status);
    CHECK_FALSE(called);
}

TEST_CASE("dispatch runs the body once, with the chosen tag, and passes its status on") {
    for (std::string_view want : {"baseline", "avx2", "avx512"}) {
        if (!fg::device::select_isa<fg::isa::all>(want)) continue;
        int calls = 0;
        std::string_view got;
        CHECK(fg::device::dispatch<fg::isa::all>(want, [&]<class Isa>(type_tag<Isa>) {
            using device = fg::device::cpu<Isa>;
            got = device::isa::name;
            ++calls;
        }));
        CHECK(calls == 1);
        CHECK(got == want);
    }
    const environment unset(nullptr);
    const auto failed = fg::device::dispatch<fg::isa::all>(
        [&]<class Isa>(type_tag<Isa>) -> fg::status { return fg::fail(fg::errc::io, "from ", Isa::name); });
    REQUIRE_FALSE(failed);
    CHECK(failed.error().message == "from " + std::string(*fg::device::select_isa<fg::isa::all>()));
}

}  // namespace

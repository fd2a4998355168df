// How many threads a process may use: affinity masks and control groups.
#include <doctest/doctest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "frugal/device/cpu/topology.hpp"

namespace {

namespace fs = std::filesystem;
namespace fg = frugal;

/// A /proc directory and control groups of the test's own.
class machine {
public:
    machine() : root_(fs::temp_directory_path() / ("frugal topology " + std::to_string(::getpid()))) {
        fs::remove_all(root_);
        fs::create_directories(root_);
    }
    ~machine() { fs::remove_all(root_); }
    void write(const std::string& path, const std::string& text) const {
        fs::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text;
    }
    /// The path as mountinfo spells it.
    [[nodiscard]] std::string mount(const std::string& path) const {
        std::string out;
        for (char c : (root_ / path).string()) out += c == ' ' ? std::string("\\040") : std::string(1, c);
        return out;
    }
    [[nodiscard]] std::optional<std::size_t> quota() const { return fg::device::quota_threads((root_ / "proc").string()); }

private:
    fs::path root_;
};

TEST_CASE("C68 quota of control groups v2, the least of all ancestors, rounded up") {
    const machine m;
    m.write("proc/cgroup", "0::/user.slice/app\n");
    m.write("proc/mountinfo", "29 23 0:26 / " + m.mount("cg") + " rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    CHECK(m.quota() == std::nullopt);
    m.write("cg/user.slice/app/cpu.max", "max 100000\n");
    CHECK(m.quota() == std::nullopt);
    m.write("cg/user.slice/app/cpu.max", "200000 100000\n");
    CHECK(m.quota() == 2u);
    m.write("cg/user.slice/app/cpu.max", "150000 100000\n");
    CHECK(m.quota() == 2u);
    m.write("cg/user.slice/app/cpu.max", "5000 100000\n");
    CHECK(m.quota() == 1u);
    m.write("cg/user.slice/app/cpu.max", "800000 100000\n");
    m.write("cg/user.slice/cpu.max", "300000 100000\n");
    CHECK(m.quota() == 3u);
    m.write("cg/user.slice/cpu.max", "max 100000\n");
    CHECK(m.quota() == 8u);
}

TEST_CASE("C68 quota of control groups v1, seen from inside and outside of a container") {
    const machine m;
    m.write("proc/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n");
    m.write("proc/mountinfo", "33 31 0:30 / " + m.mount("cpu,cpuacct") + " rw - cgroup cgroup rw,cpu,cpuacct\n" +
                                  "34 31 0:31 / " + m.mount("memory") + " rw - cgroup cgroup rw,memory\n");
    m.write("cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
    m.write("cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
    CHECK(m.quota() == std::nullopt);
    m.write("cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "250000\n");
    CHECK(m.quota() == 3u);

    // In a container only its own part is mounted: /docker/abc of the hierarchy is the mount point itself.
    m.write("proc/mountinfo", "33 31 0:30 /docker/abc " + m.mount("inside") + " rw - cgroup cgroup rw,cpu,cpuacct\n");
    m.write("inside/cpu.cfs_quota_us", "100000\n");
    m.write("inside/cpu.cfs_period_us", "50000\n");
    CHECK(m.quota() == 2u);
    // "/docker/abcd" is not inside of "/docker/abc".
    m.write("proc/cgroup", "3:cpu:/docker/abcd\n");
    m.write("inside/d/cpu.cfs_quota_us", "50000\n");
    m.write("inside/d/cpu.cfs_period_us", "50000\n");
    CHECK(m.quota() == 2u);
    // A group outside of what is visible.
    m.write("proc/cgroup", "3:cpu:/../../other\n");
    CHECK(m.quota() == 2u);
}

TEST_CASE("C68 cpuset is not cpu, and broken files mean no limit") {
    const machine m;
    m.write("proc/cgroup", "3:cpuset:/\n");
    m.write("proc/mountinfo", "33 31 0:30 / " + m.mount("cpuset") + " rw - cgroup cgroup rw,cpuset\n");
    m.write("cpuset/cpu.cfs_quota_us", "100000\n");
    m.write("cpuset/cpu.cfs_period_us", "100000\n");
    CHECK(m.quota() == std::nullopt);

    m.write("proc/cgroup", "0::/\n");
    m.write("proc/mountinfo", "29 23 0:26 / " + m.mount("cg") + " rw - cgroup2 cgroup2 rw\n");
    for (const char* text : {"", "max", "100000", "a b\n", "100000 0\n", "-5 100000\n", "0 100000\n", "1 \n"}) {
        CAPTURE(text);
        m.write("cg/cpu.max", text);
        CHECK(m.quota() == std::nullopt);
    }
    for (const char* text : {"", "\n\n", "::", "0:", " - ", "29 23 0:26 / - cgroup2\n", "1 2 3 4 5 6 - cgroup2 x\n"}) {
        CAPTURE(text);
        m.write("proc/mountinfo", text);
        m.write("proc/cgroup", text);
        CHECK(m.quota() == std::nullopt);
    }
    CHECK(fg::device::quota_threads("/nonexistent") == std::nullopt);
}

TEST_CASE("C68 the affinity mask counts") {
    const std::size_t before = fg::device::affinity_threads();
    CHECK(before >= 1);
    CHECK(fg::device::available_threads() >= 1);
    CHECK(fg::device::available_threads() <= before);
    std::size_t pinned = 0, available = 0;
    std::thread([&] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
        REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
        pinned = fg::device::affinity_threads();
        available = fg::device::available_threads();
    }).join();
    CHECK(pinned == 1);
    CHECK(available == 1);
}

}  // namespace

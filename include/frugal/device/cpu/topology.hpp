#pragma once
/// How many threads this process may really use. A container often sees every CPU of the machine and is allowed two.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "frugal/core/config.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

FRUGAL_NAMESPACE_BEGIN

namespace device {

namespace detail {

/// Content of a small text file; nothing if it cannot be read.
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::string> read_text(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) return std::nullopt;
    std::string out;
    char chunk[4096];
    for (std::size_t got = 0; (got = std::fread(chunk, 1, sizeof(chunk), file)) != 0;) out.append(chunk, got);
    const bool failed = std::ferror(file) != 0;
    std::fclose(file);
    if (failed) return std::nullopt;
    return out;
}

/// Pieces of `text` between separators; empty ones are kept.
[[nodiscard]] FRUGAL_FLAGGED inline std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> out;
    for (;;) {
        const std::size_t at = text.find(separator);
        out.push_back(text.substr(0, at));
        if (at == std::string_view::npos) return out;
        text.remove_prefix(at + 1);
    }
}

[[nodiscard]] FRUGAL_FLAGGED inline bool has_word(std::string_view list, std::string_view word) {
    for (std::string_view each : split(list, ','))
        if (each == word) return true;
    return false;
}

/// Undoes the octal escapes (space is \040) that the kernel writes into mountinfo.
[[nodiscard]] FRUGAL_FLAGGED inline std::string unescape_mount_path(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto digit = [&](std::size_t k) { return i + k < text.size() && text[i + k] >= '0' && text[i + k] <= '7'; };
        if (text[i] == '\\' && digit(1) && digit(2) && digit(3)) {
            out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
            i += 3;
        } else {
            out.push_back(text[i]);
        }
    }
    return out;
}

/// ceil(quota / period) CPUs; nothing where there is no limit ("max", -1) or the text is not two numbers.
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::size_t> quota_to_threads(const std::string& quota,
                                                                                const std::string& period) {
    char* end = nullptr;
    const long long allowed = std::strtoll(quota.c_str(), &end, 10);
    if (end == quota.c_str() || allowed <= 0) return std::nullopt;
    const long long whole = std::strtoll(period.c_str(), &end, 10);
    if (end == period.c_str() || whole <= 0) return std::nullopt;
    return static_cast<std::size_t>(allowed / whole + (allowed % whole != 0 ? 1 : 0));
}

/// The limit that one control group directory states.
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::size_t> group_quota(const std::string& directory, bool unified) {
    if (unified) {
        const auto text = read_text(directory + "/cpu.max");
        if (!text) return std::nullopt;
        const std::size_t space = text->find(' ');
        if (space == std::string::npos) return std::nullopt;
        return quota_to_threads(text->substr(0, space), text->substr(space + 1));
    }
    const auto quota = read_text(directory + "/cpu.cfs_quota_us");
    const auto period = read_text(directory + "/cpu.cfs_period_us");
    if (!quota || !period) return std::nullopt;
    return quota_to_threads(*quota, *period);
}

/// The least limit from the group at `mount_point` + `below` up to the mount point: a parent's quota binds its children.
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::size_t> least_quota(const std::string& mount_point, std::string below,
                                                                           bool unified) {
    std::optional<std::size_t> least;
    for (;;) {
        const auto here = group_quota(mount_point + below, unified);
        if (here && (!least || *here < *least)) least = here;
        const std::size_t slash = below.rfind('/');
        if (slash == std::string::npos) return least;
        below.resize(slash);
    }
}

}  // namespace detail

/// CPUs in the affinity mask of the calling thread; at least 1.
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t affinity_threads() {
#if defined(__linux__)
    // The kernel refuses a mask smaller than its own, so the size grows until it fits.
    for (std::size_t cpus = 1024; cpus <= (std::size_t{1} << 20); cpus *= 2) {
        std::vector<unsigned long> words(cpus / (8 * sizeof(unsigned long)));
        auto* mask = reinterpret_cast<cpu_set_t*>(words.data());
        const std::size_t bytes = words.size() * sizeof(unsigned long);
        if (sched_getaffinity(0, bytes, mask) != 0) continue;
        const int count = CPU_COUNT_S(bytes, mask);
        return count > 0 ? static_cast<std::size_t>(count) : 1;
    }
#endif
    const unsigned all = std::thread::hardware_concurrency();
    return all == 0 ? 1 : all;
}

/// CPU time that control groups (v1 and v2) grant this process, in CPUs, rounded up; nothing where there is no limit.
/// `process` is the /proc directory to read `cgroup` and `mountinfo` from. Source: cgroups(7), proc(5).
[[nodiscard]] FRUGAL_FLAGGED inline std::optional<std::size_t> quota_threads(const std::string& process = "/proc/self") {
    const auto groups = detail::read_text(process + "/cgroup");
    const auto mounts = detail::read_text(process + "/mountinfo");
    if (!groups || !mounts) return std::nullopt;

    // hierarchy:controllers:path, and the unified hierarchy is "0::path".
    std::optional<std::string> cpu_path, unified_path;
    for (std::string_view line : detail::split(*groups, '\n')) {
        const std::size_t first = line.find(':');
        if (first == std::string_view::npos) continue;
        const std::size_t second = line.find(':', first + 1);
        if (second == std::string_view::npos) continue;
        const std::string_view controllers = line.substr(first + 1, second - first - 1);
        if (line.substr(0, first) == "0" && controllers.empty()) unified_path = std::string(line.substr(second + 1));
        if (detail::has_word(controllers, "cpu")) cpu_path = std::string(line.substr(second + 1));
    }

    std::optional<std::size_t> least;
    // id parent device root mount-point options [optional …] - type source super-options
    for (std::string_view line : detail::split(*mounts, '\n')) {
        const std::size_t dash = line.find(" - ");
        if (dash == std::string_view::npos) continue;
        const auto before = detail::split(line.substr(0, dash), ' ');
        const auto after = detail::split(line.substr(dash + 3), ' ');
        if (before.size() < 6 || after.size() < 3) continue;
        const bool unified = after[0] == "cgroup2";
        if (!unified && !(after[0] == "cgroup" && detail::has_word(after[2], "cpu"))) continue;
        const auto& path = unified ? unified_path : cpu_path;
        if (!path) continue;
        const std::string root = detail::unescape_mount_path(before[3]);
        std::string below = *path;
        // What is mounted may be a part of the hierarchy; a path that is not under it cannot be seen from here.
        if (root != "/") {
            const bool inside =
                below.compare(0, root.size(), root) == 0 && (below.size() == root.size() || below[root.size()] == '/');
            below = inside ? below.substr(root.size()) : std::string();
        }
        if (below == "/" || below.find("..") != std::string::npos) below.clear();
        const auto here = detail::least_quota(detail::unescape_mount_path(before[4]), std::move(below), unified);
        if (here && (!least || *here < *least)) least = here;
    }
    return least;
}

/// Threads that can run at the same time: the affinity mask, cut by the CPU quota; at least 1.
[[nodiscard]] FRUGAL_FLAGGED inline std::size_t available_threads() {
    const std::size_t cpus = affinity_threads();
    const auto quota = quota_threads();
    return quota && *quota < cpus ? *quota : cpus;
}

}  // namespace device

FRUGAL_NAMESPACE_END

#pragma once
/// Progress of long work: what a reporter looks like, and a bar for terminals.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "frugal/core/error.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace io {

/// Called now and then with how much of `total` (bytes, say) is done.
template <class F>
concept progress_callback = requires(F& report, std::uint64_t done, std::uint64_t total) { report(done, total); };

/// The reporter that reports nothing.
struct FRUGAL_FLAGGED no_progress {
    void operator()(std::uint64_t, std::uint64_t) const noexcept {}
};
static_assert(progress_callback<no_progress>);

/// `bytes` in a reader's units: "999 B", "3.7 MB", "28.8 GB" (powers of 1000).
[[nodiscard]] FRUGAL_FLAGGED inline std::string format_bytes(double bytes) {
    constexpr std::array units = {"B", "kB", "MB", "GB", "TB"};
    std::size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < units.size()) bytes /= 1000, ++unit;
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), unit == 0 || bytes >= 99.95 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return text.data();
}

/// `seconds` as "8s", "2m05s" or "1h02m".
[[nodiscard]] FRUGAL_FLAGGED inline std::string format_duration(double seconds) {
    const auto whole = static_cast<std::uint64_t>(std::clamp(seconds, 0.0, 1e9) + 0.5);
    std::array<char, 48> text{};
    if (whole < 60)
        std::snprintf(text.data(), text.size(), "%ds", static_cast<int>(whole));
    else if (whole < 3600)
        std::snprintf(text.data(), text.size(), "%dm%02ds", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
    else
        std::snprintf(text.data(), text.size(), "%dh%02dm", static_cast<int>(whole / 3600), static_cast<int>(whole / 60 % 60));
    return text.data();
}

/// One line of a bar: label, bar, per cent, amount, rate and time left. `seconds` have passed.
[[nodiscard]] FRUGAL_FLAGGED inline std::string format_progress(const std::string& label, std::uint64_t done, std::uint64_t total,
                                                                double seconds) {
    constexpr std::size_t width = 24;
    done = (std::min)(done, total);
    const double part = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
    std::array<char, 16> percent{};
    std::snprintf(percent.data(), percent.size(), "%3d%%", static_cast<int>(part * 100.0));
    std::string line = concat(label, " [", std::string(filled, '#'), std::string(width - filled, '.'), "] ", percent.data(), "  ",
                              format_bytes(static_cast<double>(done)), " of ", format_bytes(static_cast<double>(total)));
    if (seconds > 0 && done > 0) {
        const double rate = static_cast<double>(done) / seconds;
        line += concat("  ", format_bytes(rate), "/s");
        if (done < total) line += concat("  ", format_duration(static_cast<double>(total - done) / rate), " left");
    }
    return line;
}

/// A progress_callback that draws a bar on a terminal (stderr by default) and nothing anywhere else. It appears only when the
/// work turns out slow, is redrawn at most ten times a second, and is wiped when it is done or destroyed.
class FRUGAL_FLAGGED progress_bar {
public:
    using clock = std::chrono::steady_clock;

    explicit progress_bar(std::string label, std::FILE* stream = stderr)
        : progress_bar(std::move(label), stream, ::isatty(::fileno(stream)) == 1, std::chrono::milliseconds(500)) {}
    /// `terminal`: whether to draw; `patience`: how long the work may take unseen.
    progress_bar(std::string label, std::FILE* stream, bool terminal, clock::duration patience)
        : label_(std::move(label)),
          stream_(stream),
          terminal_(terminal),
          patience_(patience),
          start_(clock::now()),
          last_(start_) {}
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;
    ~progress_bar() { wipe(); }

    void operator()(std::uint64_t done, std::uint64_t total) {
        if (!terminal_) return;
        if (done >= total) {
            wipe();
            return;
        }
        const auto now = clock::now();
        if (now - start_ < patience_ || (shown_ > 0 && now - last_ < std::chrono::milliseconds(100))) return;
        last_ = now;
        const std::string line = format_progress(label_, done, total, std::chrono::duration<double>(now - start_).count());
        const std::size_t pad = shown_ > line.size() ? shown_ - line.size() : 0;
        std::fprintf(stream_, "\r%s%s", line.c_str(), std::string(pad, ' ').c_str());
        std::fflush(stream_);
        shown_ = line.size();
    }

private:
    void wipe() {
        if (shown_ == 0) return;
        std::fprintf(stream_, "\r%s\r", std::string(shown_, ' ').c_str());
        std::fflush(stream_);
        shown_ = 0;
    }

    std::string label_;
    std::FILE* stream_;
    bool terminal_;
    clock::duration patience_;
    clock::time_point start_, last_;
    std::size_t shown_ = 0;
};
static_assert(progress_callback<progress_bar>);

}  // namespace io

FRUGAL_NAMESPACE_END

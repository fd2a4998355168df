#pragma once
/// Standard output, standard input and Ctrl-C as programs of a terminal use them.
#include <string>
#include <string_view>

#include "frugal/core/error.hpp"

namespace runner {

/// Writes text to standard output, at once. Errors: io.
[[nodiscard]] frugal::status print(std::string_view text);

/// From now on Ctrl-C (SIGINT) is noted and does not end the program.
void catch_interrupts();
/// Whether Ctrl-C has come since the last forget_interrupt().
[[nodiscard]] bool interrupted() noexcept;
void forget_interrupt() noexcept;

/// Reads a whole file, or standard input for "-", without a byte order mark. Errors: not_found, io.
[[nodiscard]] frugal::result<std::string> read_text(const std::string& path);

/// Lines of standard input, which end with \n or \r\n, or the turns of a conversation. A turn at a terminal is edited, where the
/// program was built with readline, and earlier ones come back with the arrow keys; pasted lines are one turn, and a backslash at
/// the end of a line continues it.
class line_reader {
public:
    enum class event {
        text,
        end,        ///< of the input
        interrupt,  ///< Ctrl-C where nothing was typed
        dropped,    ///< Ctrl-C where something was typed, which is forgotten
    };
    explicit line_reader(bool turns);
    line_reader(const line_reader&) = delete;
    line_reader& operator=(const line_reader&) = delete;

    /// Whether somebody types turns.
    [[nodiscard]] bool terminal() const noexcept { return terminal_; }
    /// The next line or turn; a terminal shows `prompt` first.
    [[nodiscard]] event read(const char* prompt, std::string& text);

private:
    [[nodiscard]] event line(const char* prompt, std::string& out);
    [[nodiscard]] event plain_line(std::string& out);
    [[nodiscard]] event edited_line(const char* prompt, std::string& out);
    /// Waits for input; false where Ctrl-C comes first.
    [[nodiscard]] static bool wait();
    /// Whether more has come already, as when lines are pasted.
    [[nodiscard]] bool pending() const;

    bool terminal_ = false, editing_ = false, ended_ = false, first_ = true;
    std::string buffer_;  ///< read, but not yet given out; never at an editor
};

}  // namespace runner

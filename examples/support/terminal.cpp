#include "terminal.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "frugal/io/utf8.hpp"
#if defined(FRUGAL_EXAMPLE_READLINE)
#include <readline/history.h>
#include <readline/readline.h>
#endif

namespace runner {

using namespace frugal;

namespace {

volatile std::sig_atomic_t interrupt_seen = 0;
// Any thread may get the signal, so whoever waits for input is woken by a byte.
int interrupt_pipe[2] = {-1, -1};

extern "C" void note_interrupt(int) {
    const int before = errno;
    interrupt_seen = 1;
    const char byte = 0;
    [[maybe_unused]] const ssize_t written = ::write(interrupt_pipe[1], &byte, 1);
    errno = before;
}

#if defined(FRUGAL_EXAMPLE_READLINE)
// readline hands lines to a function without an argument of ours.
char* edited = nullptr;
bool edited_done = false;

void take_edited(char* text) {
    rl_callback_handler_remove();
    edited = text;
    edited_done = true;
}
#endif

}  // namespace

status print(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
    return fail(errc::io, "cannot write to standard output: ", std::strerror(errno));
}

void catch_interrupts() {
    if (interrupt_pipe[0] < 0 && ::pipe2(interrupt_pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
}
bool interrupted() noexcept { return interrupt_seen != 0; }
void forget_interrupt() noexcept {
    char bytes[64];
    while (::read(interrupt_pipe[0], bytes, sizeof(bytes)) > 0) {
    }
    interrupt_seen = 0;
}

result<std::string> read_text(const std::string& path) {
    std::FILE* in = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
    if (in == nullptr) return fail(errc::not_found, "cannot open ", path, ": ", std::strerror(errno));
    std::string out;
    char block[1 << 16];
    for (std::size_t n = 0; (n = std::fread(block, 1, sizeof(block), in)) > 0;) out.append(block, n);
    const int why = std::ferror(in) != 0 ? errno : 0;
    if (in != stdin) std::fclose(in);
    if (why != 0) return fail(errc::io, "cannot read ", path, ": ", std::strerror(why));
    return std::string(io::without_byte_order_mark(out));
}

line_reader::line_reader(bool turns) : terminal_(turns && ::isatty(STDIN_FILENO) != 0) {
#if defined(FRUGAL_EXAMPLE_READLINE)
    editing_ = terminal_ && ::isatty(STDERR_FILENO) != 0;
    if (!editing_) return;
    rl_readline_name = "frugal";
    rl_instream = stdin;
    rl_outstream = stderr;  // standard output belongs to the replies
    rl_initialize();
    rl_variable_bind("enable-bracketed-paste", "on");
    rl_bind_key('\t', rl_insert);
#endif
}

line_reader::event line_reader::read(const char* prompt, std::string& text) {
    text.clear();
    for (bool more = false;; more = true) {
        std::string part;
        const event what = line(prompt, part);
        if (what == event::end) ended_ = true;
        if (what != event::text) return what == event::end && more ? event::text : what;
        text += part;
        if (!terminal_) return event::text;
        if (text.ends_with('\\')) {
            text.back() = '\n';
            prompt = "  ";
        } else if (pending()) {
            text += '\n';
            prompt = "";
        } else {
            break;
        }
    }
#if defined(FRUGAL_EXAMPLE_READLINE)
    if (editing_ && !text.empty()) add_history(text.c_str());
#endif
    return event::text;
}

line_reader::event line_reader::line(const char* prompt, std::string& out) {
    if (ended_) return event::end;
    event what = event::text;
    if (editing_) {
        what = edited_line(prompt, out);
    } else {
        if (terminal_) std::fputs(prompt, stderr);
        what = plain_line(out);
    }
    if (out.ends_with('\r')) out.pop_back();
    if (first_ && !terminal_) out = std::string(io::without_byte_order_mark(out));
    first_ = false;
    return what;
}

line_reader::event line_reader::plain_line(std::string& out) {
    for (std::size_t looked = 0;;) {
        if (const std::size_t end = buffer_.find('\n', looked); end != std::string::npos) {
            out = buffer_.substr(0, end);
            buffer_.erase(0, end + 1);
            return event::text;
        }
        looked = buffer_.size();
        if (!wait()) {
            buffer_.clear();
            std::fputc('\n', stderr);
            return event::interrupt;
        }
        char block[1 << 12];
        const ssize_t n = ::read(STDIN_FILENO, block, sizeof(block));
        if (n < 0 && errno == EINTR) continue;
        if (n > 0) {
            buffer_.append(block, static_cast<std::size_t>(n));
            continue;
        }
        out.swap(buffer_);
        buffer_.clear();
        ended_ = true;
        return out.empty() ? event::end : event::text;
    }
}

line_reader::event line_reader::edited_line([[maybe_unused]] const char* prompt, [[maybe_unused]] std::string& out) {
#if defined(FRUGAL_EXAMPLE_READLINE)
    edited_done = false;
    rl_callback_handler_install(prompt, take_edited);
    while (!edited_done) {
        if (!wait()) {
            const bool typed = rl_end != 0;
            rl_callback_sigcleanup();
            rl_callback_handler_remove();
            std::fputc('\n', stderr);
            return typed ? event::dropped : event::interrupt;
        }
        rl_callback_read_char();
    }
    if (edited == nullptr) {
        std::fputc('\n', stderr);
        return event::end;
    }
    out = edited;
    std::free(edited);
#endif
    return event::text;
}

bool line_reader::wait() {
    for (;;) {
        pollfd inputs[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_pipe[0], POLLIN, 0}};
        const int ready = ::poll(inputs, 2, -1);
        if (interrupted()) {
            forget_interrupt();
            return false;
        }
        // Errors other than a signal are for the read that follows to tell.
        if (ready > 0 || errno != EINTR) return true;
    }
}

bool line_reader::pending() const {
    if (!buffer_.empty()) return true;
    constexpr int pause = 20;  // milliseconds in which a paste goes on, and nobody types
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return ::poll(&input, 1, pause) > 0;
}

}  // namespace runner

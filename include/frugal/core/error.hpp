#pragma once
/// Errors are returned, never thrown: the headers work with -fno-exceptions -fno-rtti.
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "frugal/core/config.hpp"

/// Whether a result checks that what it is asked for is there: in every build without NDEBUG, and in checked ones.
#if defined(FRUGAL_CHECKED) || !defined(NDEBUG)
#define FRUGAL_ASSERTS 1
#else
#define FRUGAL_ASSERTS 0
#endif

FRUGAL_NAMESPACE_BEGIN

/// What kind of thing went wrong; the message says what and where.
enum class errc : std::uint8_t {
    invalid_argument,    ///< the caller passed something that can never be right
    shape_mismatch,      ///< extents of tensors do not fit together
    unsupported_format,  ///< a quantization type outside the consumer's list
    unsupported,         ///< a valid request that this build or file cannot serve
    out_of_memory,       ///< an allocation failed, or would exceed the stated limit
    context_overflow,    ///< more tokens than the sequence may hold
    cannot_rollback,     ///< the state has no way back; nothing was changed
    not_found,           ///< a named tensor, key or file is missing
    io,                  ///< the operating system refused
    malformed_file,      ///< a file breaks its own format's rules
    not_finite,          ///< NaN or infinity where a finite value is required
    device_failed,       ///< a device is not there, refused a request or ended a command with an error; it stays usable
    device_lost,         ///< a device is gone, and everything that was resident on it
};

/// Name of an error kind, for messages.
[[nodiscard]] FRUGAL_FLAGGED constexpr std::string_view to_string(errc code) noexcept {
    switch (code) {
        case errc::invalid_argument: return "invalid argument";
        case errc::shape_mismatch: return "shape mismatch";
        case errc::unsupported_format: return "unsupported format";
        case errc::unsupported: return "unsupported";
        case errc::out_of_memory: return "out of memory";
        case errc::context_overflow: return "context overflow";
        case errc::cannot_rollback: return "cannot roll back";
        case errc::not_found: return "not found";
        case errc::io: return "input/output error";
        case errc::malformed_file: return "malformed file";
        case errc::not_finite: return "not finite";
        case errc::device_failed: return "device failed";
        case errc::device_lost: return "device lost";
    }
    return "error";
}

struct FRUGAL_FLAGGED error {
    errc code = errc::invalid_argument;
    std::string message;
};

/// A piece of a message: text, a character or a number. One type for all, so that a message costs its caller little code.
class FRUGAL_FLAGGED message_piece {
public:
    message_piece(std::string_view text) noexcept : text_(text) {}
    message_piece(const std::string& text) noexcept : text_(text) {}
    message_piece(const char* text) noexcept : text_(text) {}
    message_piece(char character) noexcept : kind_(kind::character), character_(character) {}
    template <std::unsigned_integral Number>
    message_piece(Number number) noexcept : kind_(kind::natural), natural_(number) {}
    template <std::signed_integral Number>
    message_piece(Number number) noexcept : kind_(kind::integer), integer_(number) {}
    message_piece(double number) noexcept : kind_(kind::real), real_(number) {}

    void append_to(std::string& out) const {
        switch (kind_) {
            case kind::text: out.append(text_); return;
            case kind::character: out.push_back(character_); return;
            case kind::natural: out.append(std::to_string(natural_)); return;
            case kind::integer: out.append(std::to_string(integer_)); return;
            case kind::real: out.append(std::to_string(real_)); return;
        }
    }

private:
    enum class kind : std::uint8_t { text, character, natural, integer, real };

    kind kind_ = kind::text;
    std::string_view text_;
    union {
        char character_;
        unsigned long long natural_ = 0;
        long long integer_;
        double real_;
    };
};

namespace detail {

// Errors are rare and their code is large: kept out of line, and out of the way of what runs.
[[gnu::noinline, gnu::cold]] inline std::string join(std::initializer_list<message_piece> pieces) {
    std::string out;
    for (const message_piece& piece : pieces) piece.append_to(out);
    return out;
}
[[gnu::noinline, gnu::cold]] inline error make_error(errc code, std::initializer_list<message_piece> pieces) {
    return error{code, join(pieces)};
}

/// An error on its way up: one pointer, null on success. Not std::unique_ptr: <memory> is half of what this header costs.
class FRUGAL_FLAGGED boxed_error {
public:
    boxed_error() noexcept = default;
    explicit boxed_error(error* owned) noexcept : held_(owned) {}
    boxed_error(boxed_error&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
    boxed_error& operator=(boxed_error&& other) noexcept {
        if (this != &other) {
            destroy();
            held_ = std::exchange(other.held_, nullptr);
        }
        return *this;
    }
    ~boxed_error() { destroy(); }

    [[nodiscard]] error* get() const noexcept { return held_; }

private:
    void destroy() noexcept {
        if (held_ != nullptr) erase(held_);
    }
    [[gnu::noinline, gnu::cold]] static void erase(error* e) noexcept { delete e; }

    error* held_ = nullptr;
};

[[gnu::noinline, gnu::cold]] inline boxed_error box(error&& e) { return boxed_error(new error(std::move(e))); }

#if FRUGAL_ASSERTS
/// A result was asked for what it does not hold: says why on standard error and ends the program. `failure`: the result's error.
[[noreturn, gnu::noinline, gnu::cold]] inline void misused(const error* failure) noexcept {
    if (failure == nullptr) {
        std::fputs("frugal: error() of a result without an error, or a result used after its content was moved away\n", stderr);
    } else {
        const std::string_view kind = to_string(failure->code);
        std::fprintf(stderr, "frugal: the value of a failed result was used without testing it: %.*s: %s\n",
                     static_cast<int>(kind.size()), kind.data(), failure->message.c_str());
    }
    std::abort();
}
#endif

[[nodiscard]] FRUGAL_ALWAYS_INLINE error& failure_in(const boxed_error& failure) noexcept {
#if FRUGAL_ASSERTS
    if (failure.get() == nullptr) misused(nullptr);
#endif
    return *failure.get();
}

}  // namespace detail

/// Joins strings and numbers into one text.
template <class... Piece>
[[nodiscard]] FRUGAL_FLAGGED std::string concat(const Piece&... piece) {
    return detail::join({message_piece(piece)...});
}

/// Builds an error from strings and numbers: `return fail(errc::io, "cannot open ", path);`
template <class... Piece>
[[nodiscard]] error fail(errc code, const Piece&... piece) {
    return detail::make_error(code, {message_piece(piece)...});
}

/// A value or an error (std::expected is not in C++20). Test it before its value is used: where FRUGAL_ASSERTS is on, an untested
/// failure ends the program and prints the error. The accessors are forced inline, so that objects with and without NDEBUG share
/// none of them.
template <class T>
class [[nodiscard]] FRUGAL_FLAGGED result {
public:
    result(T value) : value_(std::move(value)) {}
    result(frugal::error failure) : failure_(detail::box(std::move(failure))) {}
    result(detail::boxed_error failure) noexcept : failure_(std::move(failure)) {}

    [[nodiscard]] bool has_value() const noexcept { return failure_.get() == nullptr; }
    explicit operator bool() const noexcept { return has_value(); }
    /// The value. Precondition: has_value().
    [[nodiscard]] FRUGAL_ALWAYS_INLINE T& value() & noexcept {
        check();
        return *value_;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE const T& value() const& noexcept {
        check();
        return *value_;
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE T&& value() && noexcept { return std::move(value()); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE T& operator*() & noexcept { return value(); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE const T& operator*() const& noexcept { return value(); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE T&& operator*() && noexcept { return std::move(value()); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE T* operator->() noexcept {
        check();
        return value_.operator->();
    }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE const T* operator->() const noexcept {
        check();
        return value_.operator->();
    }
    /// The error. Precondition: !has_value().
    [[nodiscard]] FRUGAL_ALWAYS_INLINE const frugal::error& error() const& noexcept { return detail::failure_in(failure_); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE frugal::error&& error() && noexcept { return std::move(detail::failure_in(failure_)); }
    /// Hands the error on to the caller's own result; see FRUGAL_TRY.
    [[nodiscard]] detail::boxed_error release_error() && noexcept { return std::move(failure_); }

private:
    FRUGAL_ALWAYS_INLINE void check() const noexcept {
#if FRUGAL_ASSERTS
        if (!value_.has_value()) detail::misused(failure_.get());
#endif
    }

    std::optional<T> value_;
    detail::boxed_error failure_;
};

/// Success, or an error.
template <>
class [[nodiscard]] result<void> {
public:
    result() = default;
    result(frugal::error failure) : failure_(detail::box(std::move(failure))) {}
    result(detail::boxed_error failure) noexcept : failure_(std::move(failure)) {}

    [[nodiscard]] bool has_value() const noexcept { return failure_.get() == nullptr; }
    explicit operator bool() const noexcept { return has_value(); }
    /// The error. Precondition: !has_value().
    [[nodiscard]] FRUGAL_ALWAYS_INLINE const frugal::error& error() const& noexcept { return detail::failure_in(failure_); }
    [[nodiscard]] FRUGAL_ALWAYS_INLINE frugal::error&& error() && noexcept { return std::move(detail::failure_in(failure_)); }
    /// Hands the error on to the caller's own result; see FRUGAL_TRY.
    [[nodiscard]] detail::boxed_error release_error() && noexcept { return std::move(failure_); }

private:
    detail::boxed_error failure_;
};

using status = result<void>;

FRUGAL_NAMESPACE_END

#define FRUGAL_CONCAT_IMPL(a, b) a##b
#define FRUGAL_CONCAT(a, b) FRUGAL_CONCAT_IMPL(a, b)

/// Returns the error of a `status` or `result` from the enclosing function; goes on if there is none.
#define FRUGAL_TRY(...)                                                                                                        \
    do {                                                                                                                       \
        if (auto&& frugal_try_status = (__VA_ARGS__); !frugal_try_status) return std::move(frugal_try_status).release_error(); \
    } while (false)

/// `FRUGAL_TRY_ASSIGN(auto x, make_x());` binds the value, or returns the error from the enclosing function.
#define FRUGAL_TRY_ASSIGN(declaration, ...) \
    FRUGAL_TRY_ASSIGN_IMPL(FRUGAL_CONCAT(frugal_try_result_, __LINE__), declaration, __VA_ARGS__)
#define FRUGAL_TRY_ASSIGN_IMPL(name, declaration, ...) \
    auto name = (__VA_ARGS__);                         \
    if (!name) return std::move(name).release_error(); \
    declaration = std::move(name).value()

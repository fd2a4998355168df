#pragma once
/// Errors are returned, never thrown: the headers work with -fno-exceptions -fno-rtti.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "frugal/core/config.hpp"

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
};

/// Name of an error kind, for messages.
[[nodiscard]] constexpr std::string_view to_string(errc code) noexcept {
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
    }
    return "error";
}

struct error {
    errc code = errc::invalid_argument;
    std::string message;
};

namespace detail {
inline void append_piece(std::string& out, std::string_view piece) { out.append(piece); }
inline void append_piece(std::string& out, const char* piece) { out.append(piece); }
inline void append_piece(std::string& out, char piece) { out.push_back(piece); }
template <class Number>
    requires std::is_arithmetic_v<Number>
void append_piece(std::string& out, Number piece) {
    out.append(std::to_string(piece));
}
}  // namespace detail

/// Joins strings and numbers into one text.
template <class... Piece>
[[nodiscard]] std::string concat(const Piece&... piece) {
    std::string out;
    (detail::append_piece(out, piece), ...);
    return out;
}

/// Builds an error from strings and numbers: `return fail(errc::io, "cannot open ", path);`
template <class... Piece>
[[nodiscard]] error fail(errc code, const Piece&... piece) {
    return error{code, concat(piece...)};
}

/// A value or an error (std::expected is not in C++20). Testing it is the only way to the value.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
    result(frugal::error failure) : content_(std::in_place_index<1>, std::move(failure)) {}

    [[nodiscard]] bool has_value() const noexcept { return content_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }
    /// The value. Precondition: has_value().
    [[nodiscard]] T& value() & noexcept { return *std::get_if<0>(&content_); }
    [[nodiscard]] const T& value() const& noexcept { return *std::get_if<0>(&content_); }
    [[nodiscard]] T&& value() && noexcept { return std::move(*std::get_if<0>(&content_)); }
    [[nodiscard]] T& operator*() & noexcept { return value(); }
    [[nodiscard]] const T& operator*() const& noexcept { return value(); }
    [[nodiscard]] T&& operator*() && noexcept { return std::move(*this).value(); }
    [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&content_); }
    [[nodiscard]] const T* operator->() const noexcept { return std::get_if<0>(&content_); }
    /// The error. Precondition: !has_value().
    [[nodiscard]] const frugal::error& error() const& noexcept { return *std::get_if<1>(&content_); }
    [[nodiscard]] frugal::error&& error() && noexcept { return std::move(*std::get_if<1>(&content_)); }

private:
    std::variant<T, frugal::error> content_;
};

/// Success, or an error.
template <>
class [[nodiscard]] result<void> {
public:
    result() = default;
    result(frugal::error failure) : failure_(std::move(failure)) {}

    [[nodiscard]] bool has_value() const noexcept { return !failure_.has_value(); }
    explicit operator bool() const noexcept { return has_value(); }
    /// The error. Precondition: !has_value().
    [[nodiscard]] const frugal::error& error() const& noexcept { return *failure_; }
    [[nodiscard]] frugal::error&& error() && noexcept { return std::move(*failure_); }

private:
    std::optional<frugal::error> failure_;
};

using status = result<void>;

FRUGAL_NAMESPACE_END

#define FRUGAL_CONCAT_IMPL(a, b) a##b
#define FRUGAL_CONCAT(a, b) FRUGAL_CONCAT_IMPL(a, b)

/// Returns the error of a `status` or `result` from the enclosing function; goes on if there is none.
#define FRUGAL_TRY(...)                                                          \
    do {                                                                         \
        if (auto frugal_try_status = (__VA_ARGS__); !frugal_try_status)          \
            return std::move(frugal_try_status).error();                         \
    } while (false)

/// `FRUGAL_TRY_ASSIGN(auto x, make_x());` binds the value, or returns the error from the enclosing function.
#define FRUGAL_TRY_ASSIGN(declaration, ...) \
    FRUGAL_TRY_ASSIGN_IMPL(FRUGAL_CONCAT(frugal_try_result_, __LINE__), declaration, __VA_ARGS__)
#define FRUGAL_TRY_ASSIGN_IMPL(name, declaration, ...) \
    auto name = (__VA_ARGS__);                         \
    if (!name) return std::move(name).error();         \
    declaration = std::move(name).value()

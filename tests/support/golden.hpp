#pragma once
/// Reads golden vectors: one case a .safetensors file with its roles, parameters and tolerances in the metadata.
/// Deliberately apart from io/safetensors.hpp, which is itself under test. The JSON library stays in golden.cpp, since what it
/// instantiates takes longer to compile than most tests.
#include <doctest/doctest.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace test {

struct tolerance {
    double atol = 0, rtol = 0;
};

/// A value among the parameters of a golden file, which must outlive it. Throws where it is of another type than asked for.
class parameter {
public:
    explicit parameter(const void* node) : node_(node) {}
    [[nodiscard]] parameter at(const std::string& key) const;
    [[nodiscard]] bool contains(const std::string& key) const;
    /// As JSON text.
    [[nodiscard]] std::string text() const;
    /// For the types that golden.cpp names.
    template <class T>
    [[nodiscard]] T get() const;
    template <class T>
        requires(std::is_arithmetic_v<T>)
    operator T() const {  // NOLINT: implicit by design, as a JSON value converts
        return get<T>();
    }
    friend bool operator==(const parameter& p, const char* text) { return p.get<std::string>() == text; }
    template <std::integral T>
    friend bool operator==(const parameter& p, T number) {
        return std::cmp_equal(p.get<std::size_t>(), number);
    }

private:
    const void* node_;
};

class golden {
public:
    /// `name` without folder prefix and extension: "gdn/gates". Throws if the file is missing or broken.
    explicit golden(const std::string& name) : golden(name, std::string(FRUGAL_TEST_DATA "/") + name + ".safetensors") {}
    golden(std::string name, const std::string& path);

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] parameter params() const;
    [[nodiscard]] bool has(const std::string& tensor) const;
    [[nodiscard]] std::vector<std::string> tensors() const;
    [[nodiscard]] std::vector<std::size_t> shape(const std::string& tensor) const;
    [[nodiscard]] std::string dtype(const std::string& tensor) const;
    /// The elements; T must match the stored type's size.
    template <class T>
    [[nodiscard]] std::vector<T> get(const std::string& tensor) const {
        const std::span<const char> stored = bytes(tensor);
        std::vector<T> out(stored.size() / sizeof(T));
        if (!out.empty()) std::memcpy(out.data(), stored.data(), stored.size());
        return out;
    }
    [[nodiscard]] std::vector<float> f32(const std::string& tensor) const { return get<float>(tensor); }
    [[nodiscard]] std::vector<std::int64_t> i64(const std::string& tensor) const { return get<std::int64_t>(tensor); }

    /// Advised tolerance of a tensor: its exact name, then `prefix_*` patterns, then `*`.
    [[nodiscard]] tolerance tol(const std::string& tensor) const;

private:
    struct content;
    [[nodiscard]] std::span<const char> bytes(const std::string& tensor) const;

    std::string name_;
    std::shared_ptr<const content> content_;
};

/// |got - want| <= atol + rtol * |want| everywhere, same NaN and infinity; reports the worst element once.
template <class T>
void check_close(std::span<const T> got, std::span<const T> want, tolerance tol, const std::string& what) {
    REQUIRE_MESSAGE(got.size() == want.size(), what, ": sizes differ: ", got.size(), " and ", want.size());
    double worst = -1;
    std::size_t where = 0, bad = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
        if (g == w || (std::isnan(g) && std::isnan(w))) continue;
        const double excess = std::isfinite(g) && std::isfinite(w) ? std::abs(g - w) - (tol.atol + tol.rtol * std::abs(w))
                                                                   : std::numeric_limits<double>::infinity();
        if (excess > 0) ++bad;
        if (excess > worst) worst = excess, where = i;
    }
    if (bad == 0) {
        CHECK(bad == 0);
        return;
    }
    CHECK_MESSAGE(bad == 0, what, ": ", bad, " of ", got.size(), " elements off; worst at ", where, ": got ", got[where],
                  ", want ", want[where], ", atol ", tol.atol, ", rtol ", tol.rtol);
}

inline void check_close(const std::vector<float>& got, const std::vector<float>& want, tolerance tol, const std::string& what) {
    check_close<float>(std::span<const float>(got), std::span<const float>(want), tol, what);
}

}  // namespace test

#pragma once
/// Reads golden vectors: one case a .safetensors file with its roles, parameters and tolerances in the metadata.
/// Deliberately apart from io/safetensors.hpp, which is itself under test.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace test {

struct tolerance {
    double atol = 0, rtol = 0;
};

class golden {
public:
    /// `name` without folder prefix and extension: "gdn/gates". Throws if the file is missing or broken.
    explicit golden(const std::string& name) : golden(name, std::string(FRUGAL_TEST_DATA "/") + name + ".safetensors") {}
    golden(std::string name, const std::string& path) : name_(std::move(name)) {
        std::ifstream in(path, std::ios::binary);
        if (!in) throw std::runtime_error("cannot open golden file " + path);
        raw_.assign(std::istreambuf_iterator<char>(in), {});
        std::uint64_t size = 0;
        std::memcpy(&size, raw_.data(), 8);
        header_ = nlohmann::json::parse(raw_.begin() + 8, raw_.begin() + 8 + static_cast<std::ptrdiff_t>(size));
        start_ = 8 + size;
        if (header_.contains("__metadata__"))
            for (const char* key : {"params", "tensors", "tol"})
                if (header_["__metadata__"].contains(key))
                    meta_[key] = nlohmann::json::parse(header_["__metadata__"][key].get<std::string>());
    }

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] const nlohmann::json& params() const { return meta_.at("params"); }
    [[nodiscard]] bool has(const std::string& tensor) const { return header_.contains(tensor); }
    [[nodiscard]] std::vector<std::string> tensors() const {
        std::vector<std::string> out;
        for (const auto& [key, value] : header_.items())
            if (key != "__metadata__") out.push_back(key);
        return out;
    }
    [[nodiscard]] std::vector<std::size_t> shape(const std::string& tensor) const {
        return header_.at(tensor).at("shape").get<std::vector<std::size_t>>();
    }
    [[nodiscard]] std::string dtype(const std::string& tensor) const { return header_.at(tensor).at("dtype"); }
    /// The elements; T must match the stored type's size.
    template <class T>
    [[nodiscard]] std::vector<T> get(const std::string& tensor) const {
        const auto& offsets = header_.at(tensor).at("data_offsets");
        const std::size_t begin = offsets[0], end = offsets[1];
        std::vector<T> out((end - begin) / sizeof(T));
        if (!out.empty()) std::memcpy(out.data(), raw_.data() + start_ + begin, end - begin);
        return out;
    }
    [[nodiscard]] std::vector<float> f32(const std::string& tensor) const { return get<float>(tensor); }
    [[nodiscard]] std::vector<std::int64_t> i64(const std::string& tensor) const { return get<std::int64_t>(tensor); }

    /// Advised tolerance of a tensor: its exact name, then `prefix_*` patterns, then `*`.
    [[nodiscard]] tolerance tol(const std::string& tensor) const {
        const auto& all = meta_.at("tol");
        if (all.contains(tensor)) return read(all.at(tensor));
        const nlohmann::json* best = nullptr;
        std::size_t length = 0;
        for (const auto& [key, value] : all.items())
            if (key.size() > 1 && key.back() == '*' && tensor.rfind(key.substr(0, key.size() - 1), 0) == 0 && key.size() > length) {
                best = &value;
                length = key.size();
            }
        return read(best != nullptr ? *best : all.at("*"));
    }

private:
    static tolerance read(const nlohmann::json& value) { return {value.at("atol").get<double>(), value.at("rtol").get<double>()}; }

    std::string name_;
    std::vector<char> raw_;
    nlohmann::json header_, meta_;
    std::size_t start_ = 0;
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
    CHECK_MESSAGE(bad == 0, what, ": ", bad, " of ", got.size(), " elements off; worst at ", where, ": got ", got[where], ", want ",
                  want[where], ", atol ", tol.atol, ", rtol ", tol.rtol);
}

inline void check_close(const std::vector<float>& got, const std::vector<float>& want, tolerance tol, const std::string& what) {
    check_close<float>(std::span<const float>(got), std::span<const float>(want), tol, what);
}

}  // namespace test

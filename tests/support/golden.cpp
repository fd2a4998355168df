#include "golden.hpp"

#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace test {

namespace {

using nlohmann::json;

const json& node_of(const void* node) { return *static_cast<const json*>(node); }

tolerance read_tolerance(const json& value) { return {value.at("atol").get<double>(), value.at("rtol").get<double>()}; }

}  // namespace

parameter parameter::at(const std::string& key) const { return parameter(&node_of(node_).at(key)); }
bool parameter::contains(const std::string& key) const { return node_of(node_).contains(key); }
std::string parameter::text() const { return node_of(node_).dump(); }
template <class T>
T parameter::get() const {
    return node_of(node_).get<T>();
}
template bool parameter::get() const;
template int parameter::get() const;
template unsigned parameter::get() const;
template std::int64_t parameter::get() const;
template std::uint64_t parameter::get() const;
template float parameter::get() const;
template double parameter::get() const;
template std::string parameter::get() const;
template std::vector<std::size_t> parameter::get() const;
template std::vector<std::string> parameter::get() const;
template std::array<int, 3> parameter::get() const;

struct golden::content {
    std::vector<char> raw;
    json header, meta;
    std::size_t start = 0;
};

golden::golden(std::string name, const std::string& path) : name_(std::move(name)) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open golden file " + path);
    const auto out = std::make_shared<content>();
    out->raw.assign(std::istreambuf_iterator<char>(in), {});
    std::uint64_t size = 0;
    std::memcpy(&size, out->raw.data(), 8);
    out->header = json::parse(out->raw.begin() + 8, out->raw.begin() + 8 + static_cast<std::ptrdiff_t>(size));
    out->start = 8 + size;
    if (out->header.contains("__metadata__"))
        for (const char* key : {"params", "tensors", "tol"})
            if (out->header["__metadata__"].contains(key))
                out->meta[key] = json::parse(out->header["__metadata__"][key].get<std::string>());
    content_ = out;
}

parameter golden::params() const { return parameter(&content_->meta.at("params")); }
bool golden::has(const std::string& tensor) const { return content_->header.contains(tensor); }
std::vector<std::string> golden::tensors() const {
    std::vector<std::string> out;
    for (const auto& [key, value] : content_->header.items())
        if (key != "__metadata__") out.push_back(key);
    return out;
}
std::vector<std::size_t> golden::shape(const std::string& tensor) const {
    return content_->header.at(tensor).at("shape").get<std::vector<std::size_t>>();
}
std::string golden::dtype(const std::string& tensor) const { return content_->header.at(tensor).at("dtype"); }

std::span<const char> golden::bytes(const std::string& tensor) const {
    const json& offsets = content_->header.at(tensor).at("data_offsets");
    const std::size_t begin = offsets[0], end = offsets[1];
    return {content_->raw.data() + content_->start + begin, end - begin};
}

tolerance golden::tol(const std::string& tensor) const {
    const json& all = content_->meta.at("tol");
    if (all.contains(tensor)) return read_tolerance(all.at(tensor));
    const json* best = nullptr;
    std::size_t length = 0;
    for (const auto& [key, value] : all.items())
        if (key.size() > 1 && key.back() == '*' && tensor.rfind(key.substr(0, key.size() - 1), 0) == 0 && key.size() > length) {
            best = &value;
            length = key.size();
        }
    return read_tolerance(best != nullptr ? *best : all.at("*"));
}

}  // namespace test

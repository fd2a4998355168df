#include "model_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <span>
#include <utility>

#include "frugal/io/progress.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/hugging_face_loader.hpp"

namespace runner {

using namespace frugal;

namespace {

bool is_directory(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::uint64_t physical_memory() {
    const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 0;
}

/// Brings a mapping into memory, page by page, so that the wait is seen as progress and not as a slow first token.
template <io::progress_callback Progress>
void touch(std::span<const std::byte> bytes, std::uint64_t total, std::uint64_t& done, Progress& progress) {
    constexpr std::size_t page = 4096, step = std::size_t{1} << 22;
    volatile std::byte sink{};
    for (std::size_t begin = 0; begin < bytes.size(); begin += step) {
        const std::size_t end = bytes.size() - begin < step ? bytes.size() : begin + step;
        for (std::size_t i = begin; i < end; i += page) sink = bytes[i];
        done += end - begin;
        progress(done, total);
    }
    static_cast<void>(sink);
}

}  // namespace

std::string resolve_model(const std::string& name) {
    if (name.find('/') == std::string::npos && name.find('.') == std::string::npos) {
        const std::string embedded = std::string(FRUGAL_EXAMPLE_MODELS) + "/" + name + "-Q4_K_M.gguf";
        if (::access(embedded.c_str(), R_OK) == 0) return embedded;
    }
    return name;
}

result<model_file> open_model(const std::string& path, const open_options& options) {
    model_file out;
    std::vector<std::span<const std::byte>> mappings;
    const model::load_options load{options.qsa_ratio, false};
    if (is_directory(path)) {
        FRUGAL_TRY_ASSIGN(auto checkpoint, io::safetensors_directory::open(path));
        FRUGAL_TRY_ASSIGN(const std::string config, checkpoint.config());
        FRUGAL_TRY_ASSIGN(out.sizes, model::read_config(config, checkpoint, load));
        FRUGAL_TRY_ASSIGN(const std::string tokenizer, checkpoint.read_text("tokenizer.json"));
        const auto names = checkpoint.read_text("tokenizer_config.json");
        FRUGAL_TRY_ASSIGN(out.tokenizer,
                          io::tokenizer::from_tokenizer_json(tokenizer, names ? std::string_view(*names) : std::string_view()));
        for (const io::safetensor* tensor : checkpoint.tensors()) mappings.push_back(tensor->bytes);
        out.checkpoint.emplace(std::move(checkpoint));
    } else {
        FRUGAL_TRY_ASSIGN(auto gguf, io::gguf_file::open(path));
        FRUGAL_TRY_ASSIGN(out.sizes, model::read_config(gguf, load));
        FRUGAL_TRY_ASSIGN(out.tokenizer, io::tokenizer::from_gguf(gguf));
        for (const io::gguf_tensor& tensor : gguf.tensors()) {
            FRUGAL_TRY_ASSIGN(const auto bytes, gguf.bytes(tensor));
            mappings.push_back(bytes);
        }
        out.gguf.emplace(std::move(gguf));
    }
    for (const auto& mapping : mappings) out.bytes += mapping.size();
    const std::uint64_t memory = physical_memory();
    if (!options.allow_paging && memory != 0 && out.bytes > memory)
        return fail(errc::out_of_memory, path, ": weights of ", out.bytes >> 20, " MiB do not fit in this machine's ",
                    memory >> 20, " MiB; pass --allow-paging to read them from disk again and again");
    if (memory == 0 || out.bytes <= memory) {
        io::progress_bar bar("loading");
        std::uint64_t done = 0;
        for (const auto& mapping : mappings) touch(mapping, out.bytes, done, bar);
    }
    return out;
}

}  // namespace runner

#include "model_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <span>
#include <utility>

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

/// Calls `f(bytes)` for each tensor whose size is known: a type that nobody knows matters only where a model reads it.
template <class F>
void for_each_tensor(const model_file& file, F&& f) {
    if (file.checkpoint)
        for (const io::safetensor* tensor : file.checkpoint->tensors()) f(tensor->bytes);
    if (file.gguf)
        for (const io::gguf_tensor& tensor : file.gguf->tensors())
            if (const auto bytes = file.gguf->bytes(tensor)) f(*bytes);
}

}  // namespace

result<io::chat_template> chat_layout(const model_file& file) {
    auto format = io::recognise_chat_format(file.chat_template);
    if (!format && !file.chat_template.empty())
        std::fprintf(stderr, "the file's chat template is not one that is known here: turns are written as Qwen3.5's\n");
    return io::chat_template::create(*file.tokenizer, format.value_or(io::chat_format{}));
}

std::string resolve_model(const std::string& name) {
    if (name.find('/') == std::string::npos && name.find('.') == std::string::npos) {
        const std::string embedded = std::string(FRUGAL_EXAMPLE_MODELS) + "/" + name + "-Q4_K_M.gguf";
        if (::access(embedded.c_str(), R_OK) == 0) return embedded;
    }
    return name;
}

result<model_file> open_model(const std::string& path, const open_options& options) {
    model_file out;
    const model::load_options load{options.qsa_ratio, false};
    if (is_directory(path)) {
        FRUGAL_TRY_ASSIGN(auto checkpoint, io::safetensors_directory::open(path));
        FRUGAL_TRY_ASSIGN(const std::string config, checkpoint.config());
        FRUGAL_TRY_ASSIGN(out.sizes, model::read_config(config, checkpoint, load));
        FRUGAL_TRY_ASSIGN(const std::string tokenizer, checkpoint.read_text("tokenizer.json"));
        const auto names = checkpoint.read_text("tokenizer_config.json");
        FRUGAL_TRY_ASSIGN(out.tokenizer,
                          io::tokenizer::from_tokenizer_json(tokenizer, names ? std::string_view(*names) : std::string_view()));
        FRUGAL_TRY_ASSIGN(out.chat_template, io::read_chat_template(checkpoint));
        out.checkpoint.emplace(std::move(checkpoint));
    } else {
        FRUGAL_TRY_ASSIGN(auto gguf, io::gguf_file::open(path));
        FRUGAL_TRY_ASSIGN(out.sizes, model::read_config(gguf, load));
        FRUGAL_TRY_ASSIGN(out.tokenizer, io::tokenizer::from_gguf(gguf));
        FRUGAL_TRY_ASSIGN(out.chat_template, io::read_chat_template(gguf));
        out.gguf.emplace(std::move(gguf));
    }
    out.tokenizer->also_end_at(out.sizes.eos);
    for_each_tensor(out, [&](std::span<const std::byte> bytes) { out.bytes += bytes.size(); });
    const std::uint64_t memory = physical_memory();
    out.exceeds_memory = memory != 0 && out.bytes > memory;
    if (out.exceeds_memory && !options.allow_paging)
        return fail(errc::out_of_memory, path, ": weights of ", out.bytes >> 20, " MiB do not fit in this machine's ",
                    memory >> 20, " MiB; pass --allow-paging to read them from disk again and again");
    return out;
}

void read_in(const model_file& file, const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    constexpr std::size_t page = 4096, step = std::size_t{1} << 22;
    volatile std::byte sink{};
    std::uint64_t done = 0;
    for_each_tensor(file, [&](std::span<const std::byte> bytes) {
        for (std::size_t begin = 0; begin < bytes.size(); begin += step) {
            const std::size_t end = bytes.size() - begin < step ? bytes.size() : begin + step;
            for (std::size_t i = begin; i < end; i += page) sink = bytes[i];
            done += end - begin;
            if (progress) progress(done, file.bytes);
        }
    });
    static_cast<void>(sink);
}

}  // namespace runner

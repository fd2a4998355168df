// Opens a model's files and hands them to the most able instruction set that was compiled.
#include <sys/stat.h>

#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/model/gguf_loader.hpp"
#include "frugal/model/hugging_face_loader.hpp"
#include "typed_model.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace model {

#define FRUGAL_DECLARE_PACKED_MODEL(tag, bytes, compiled, supported)                                                  \
    template <>                                                                                                       \
    result<std::unique_ptr<compiled_model>> make_packed_model<isa::tag>(std::unique_ptr<weight_files>, const config&, \
                                                                        const compiled_options&, device::executor_ref);
FRUGAL_CPU_ISAS(FRUGAL_DECLARE_PACKED_MODEL)
#undef FRUGAL_DECLARE_PACKED_MODEL

namespace {

bool is_directory(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

result<std::unique_ptr<compiled_model>> compiled_model::load(const std::string& path, const compiled_options& options,
                                                             device::executor_ref threads) {
    const load_options reading{options.qsa_ratio, options.check_tensors};
    std::unique_ptr<weight_files> files;
    config sizes;
    if (is_directory(path)) {
        FRUGAL_TRY_ASSIGN(auto checkpoint, io::safetensors_directory::open(path));
        FRUGAL_TRY_ASSIGN(const std::string text, checkpoint.config());
        FRUGAL_TRY_ASSIGN(sizes, read_config(text, checkpoint, reading));
        files = std::make_unique<weight_files>(std::move(checkpoint));
    } else {
        FRUGAL_TRY_ASSIGN(auto gguf, io::gguf_file::open(path));
        FRUGAL_TRY_ASSIGN(sizes, read_config(gguf, reading));
        files = std::make_unique<weight_files>(std::move(gguf));
    }
    std::unique_ptr<compiled_model> out;
    FRUGAL_TRY(device::dispatch<type_list<FRUGAL_MODELS_ISAS>>([&]<class Isa>(type_tag<Isa>) -> status {
        FRUGAL_TRY_ASSIGN(out, make_packed_model<Isa>(std::move(files), sizes, options, threads));
        return {};
    }));
    return out;
}

}  // namespace model

FRUGAL_NAMESPACE_END

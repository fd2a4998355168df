#include "engine.hpp"

#include <algorithm>

#include "engine_isa.hpp"
#include "frugal/device/cpu/dispatch.hpp"
#include "model_file.hpp"

namespace runner {

using namespace frugal;

// Those that have been compiled.
using engine_isas = type_list<FRUGAL_ENGINE_ISAS>;

#define FRUGAL_DECLARE_ENGINE(tag, bytes, compiled, supported)                                                                 \
    template <>                                                                                                                \
    result<std::unique_ptr<engine>> make_engine_for<isa::tag>(const model_file&, device::executor_ref, const engine_options&); \
    template <>                                                                                                                \
    result<std::unique_ptr<engine>> make_packed_engine_for<isa::tag>(const model_file&, device::executor_ref,                  \
                                                                     const engine_options&);
FRUGAL_CPU_ISAS(FRUGAL_DECLARE_ENGINE)
#undef FRUGAL_DECLARE_ENGINE

result<std::unique_ptr<engine>> make_engine(const model_file& file, device::executor_ref executor,
                                            const engine_options& options) {
    if (file.gguf && !options.exact) return make_packed_engine(file, executor, options);
    std::unique_ptr<engine> out;
    FRUGAL_TRY(device::dispatch<engine_isas>([&]<class Isa>(type_tag<Isa>) -> status {
        FRUGAL_TRY_ASSIGN(out, make_engine_for<Isa>(file, executor, options));
        return {};
    }));
    return out;
}

result<std::unique_ptr<engine>> make_packed_engine(const model_file& file, device::executor_ref executor,
                                                   const engine_options& options) {
    if (!file.gguf) return fail(errc::unsupported, "weight images are made from GGUF files only");
    std::unique_ptr<engine> out;
    FRUGAL_TRY(device::dispatch<engine_isas>([&]<class Isa>(type_tag<Isa>) -> status {
        FRUGAL_TRY_ASSIGN(out, make_packed_engine_for<Isa>(file, executor, options));
        return {};
    }));
    return out;
}

status prefill(engine& model, attention::sequence_id sequence, std::span<const std::int32_t> tokens, std::size_t piece,
               std::size_t wanted, std::vector<float>& logits) {
    const std::size_t vocabulary = model.sizes().vocabulary;
    wanted = std::min(wanted, tokens.size());
    logits.resize(wanted * vocabulary);
    std::size_t written = 0;
    for (std::size_t begin = 0; begin < tokens.size(); begin += piece) {
        const std::size_t count = std::min(piece, tokens.size() - begin);
        std::vector<std::size_t> rows;
        for (std::size_t i = 0; i < count; ++i)
            if (begin + i + wanted >= tokens.size()) rows.push_back(i);
        const attention::segment segment{sequence, 0, count};
        const matrix_view<float> out(logits.data() + written * vocabulary, rows.size(), vocabulary);
        FRUGAL_TRY(model.forward({tokens.subspan(begin, count), {&segment, 1}, {}, rows}, out));
        written += rows.size();
    }
    return {};
}

}  // namespace runner

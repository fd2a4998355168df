#include "engine.hpp"

#include <algorithm>
#include <utility>

#include "engine_isa.hpp"
#include "frugal/device/cpu/dispatch.hpp"
#include "frugal/io/mapped_file.hpp"
#include "frugal/io/progress.hpp"
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

result<std::unique_ptr<engine>> load_engine(engine_options options,
                                            const std::function<result<std::unique_ptr<engine>>(const engine_options&)>& make) {
    io::progress_bar bar("loading");
    options.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar(done, total); };
    const auto pages = std::make_shared<io::page_return>();
    if (!options.images.source_unneeded)
        options.images.source_unneeded = [pages](std::span<const std::byte> part) { (*pages)(part); };
    FRUGAL_TRY_ASSIGN(auto out, make(options));
    pages->finish();
    return out;
}

result<std::unique_ptr<engine>> make_engine(const model_file& file, device::executor_ref executor,
                                            const engine_options& options) {
    if (!options.exact && !file.exceeds_memory) return make_packed_engine(file, executor, options);
    return load_engine(options, [&](const engine_options& o) -> result<std::unique_ptr<engine>> {
        if (!file.exceeds_memory) read_in(file, o.progress);
        std::unique_ptr<engine> out;
        FRUGAL_TRY(device::dispatch<engine_isas>([&]<class Isa>(type_tag<Isa>) -> status {
            FRUGAL_TRY_ASSIGN(out, make_engine_for<Isa>(file, executor, o));
            return {};
        }));
        return out;
    });
}

result<std::unique_ptr<engine>> make_packed_engine(const model_file& file, device::executor_ref executor,
                                                   const engine_options& options) {
    return load_engine(options, [&](const engine_options& o) -> result<std::unique_ptr<engine>> {
        std::unique_ptr<engine> out;
        FRUGAL_TRY(device::dispatch<engine_isas>([&]<class Isa>(type_tag<Isa>) -> status {
            FRUGAL_TRY_ASSIGN(out, make_packed_engine_for<Isa>(file, executor, o));
            return {};
        }));
        return out;
    });
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

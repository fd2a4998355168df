// fails BARE_DEVICE: frugal: model::transformer takes its policies as one bundle; write transformer<spec, convention, policies<quant::list<...>, device::cpu<...>>>, in any order, or leave them out
// fails OTHER_DEVICE: frugal: model::transformer runs on CPU targets so far; write policies<device::cpu<>>
// fails POLICIES_SECOND: frugal: the second parameter of a model is the convention of its file, policies are the third
#include <string_view>

#include "frugal/model/transformer.hpp"

namespace fg = frugal;

struct abacus {
    static constexpr std::string_view name = "abacus";
    fg::counters_off& counters();
};

#if defined(BARE_DEVICE)
using bundle = fg::device::cpu<>;
#elif defined(OTHER_DEVICE)
using bundle = fg::policies<abacus>;
#else
using bundle = fg::policies<>;
#endif
#if defined(POLICIES_SECOND)
using model = fg::model::transformer<fg::model::qwen35, bundle>;
#else
using model = fg::model::transformer<fg::model::qwen35, fg::model::convention::gguf, bundle>;
#endif
static_assert(sizeof(model) > 0);

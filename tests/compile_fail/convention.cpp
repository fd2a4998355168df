// fails POLICIES: frugal: the second parameter of a model is the convention of its file, policies are the third; write transformer<spec, model::convention::gguf, policies<...>>, or hugging_face for checkpoints
// fails NO_PAIRING: frugal: the second parameter of a model is the convention of its file
// fails NO_DECAY: frugal: the second parameter of a model is the convention of its file
#include <string_view>

#include "frugal/model/convention.hpp"
#include "frugal/policies.hpp"

namespace fg = frugal;

struct mine {
    static constexpr std::string_view name = "mine";
#if !defined(NO_PAIRING)
    using head_pairing = fg::ops::head_pairing::grouped;
#endif
    using norm_weight = fg::ops::norm_weight::plain;
#if !defined(NO_DECAY)
    static constexpr bool decay_is_log = true;
#endif
    static constexpr bool innermost_first = false;
};

template <class Convention>
struct model {
    FRUGAL_REQUIRE_CONVENTION(Convention);
};
#if defined(POLICIES)
template struct model<fg::policies<>>;
#else
template struct model<mine>;
#endif

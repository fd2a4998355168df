// fails NO_WEIGHTS: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state, and make_state(dims, state_sizes); the state must model attention::parsing_state (reserve, snapshot, check_fits, restore, rollback, copy, clear, save, parse, load); see attention/full for one
// fails NO_RESERVE: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_SNAPSHOT: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_RESTORE: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_CAN_ROLLBACK: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_ROLLBACK: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_COPY: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_CLEAR: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_SAVE: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails EMPTY: frugal: a model's pattern needs at least one layer: pattern<attention::full<...>>
// fails NO_LOAD: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_PARSE: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails NO_MAKE: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
// fails IN_A_PATTERN: frugal: an attention variant needs a name, is_recurrent, the types dims, weights, products and state
//
// C40: a cache that lacks one of the operations of the others fails to compile, whichever it is.
#include <cstddef>
#include <string_view>

#include "frugal/attention/variant.hpp"
#include "frugal/model/spec.hpp"

namespace fg = frugal;
using fg::attention::sequence_id;

struct cache {
    struct snapshot_type {
        std::size_t length = 0;
    };
    std::size_t sequences() const;
    std::size_t length(sequence_id) const;
#if !defined(NO_RESERVE)
    fg::status reserve(sequence_id, std::size_t);
#endif
#if !defined(NO_SNAPSHOT)
    fg::result<snapshot_type> snapshot(sequence_id) const;
#endif
#if !defined(NO_RESTORE)
    fg::status restore(sequence_id, const snapshot_type&);
#endif
#if !defined(NO_CAN_ROLLBACK)
    bool can_rollback(sequence_id, std::size_t) const;
#endif
#if !defined(NO_ROLLBACK)
    fg::status rollback(sequence_id, std::size_t);
#endif
#if !defined(NO_COPY)
    fg::status copy(sequence_id, sequence_id);
#endif
#if !defined(NO_CLEAR)
    void clear(sequence_id);
#endif
#if !defined(NO_SAVE)
    void save(sequence_id, fg::byte_writer&) const;
#endif
#if !defined(NO_LOAD)
    fg::status load(sequence_id, fg::byte_reader&);
#endif
    fg::status check_fits(const snapshot_type&) const;
#if !defined(NO_PARSE)
    fg::result<snapshot_type> parse(fg::byte_reader&) const;
#endif
};

struct window {
    struct dims {};
#if !defined(NO_WEIGHTS)
    struct weights {};
#endif
    struct products {
        using weights = int;
    };
    using state = cache;
    static constexpr std::string_view name = "window";
    static constexpr bool is_recurrent = false;
#if !defined(NO_MAKE)
    static fg::result<cache> make_state(const dims&, const fg::attention::state_sizes&);
#endif
};

template <class Variant>
struct layer {
    FRUGAL_REQUIRE_ATTENTION_VARIANT(Variant);
};
template struct layer<window>;

#if defined(IN_A_PATTERN)
using layers = fg::model::pattern<int>;
#elif defined(EMPTY)
using layers = fg::model::pattern<>;
#else
using layers = fg::model::pattern<window>;
#endif
static_assert(layers::kinds::size == 1);

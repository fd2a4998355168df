// fails NO_WEIGHTS: frugal: an attention variant needs the types dims, weights and state, and the state must model attention::sequence_state (reserve, snapshot, restore, rollback, copy, clear, save, load); see attention/gdn for one
// fails NO_RESERVE: frugal: an attention variant needs the types dims, weights and state
// fails NO_SNAPSHOT: frugal: an attention variant needs the types dims, weights and state
// fails NO_RESTORE: frugal: an attention variant needs the types dims, weights and state
// fails NO_CAN_ROLLBACK: frugal: an attention variant needs the types dims, weights and state
// fails NO_ROLLBACK: frugal: an attention variant needs the types dims, weights and state
// fails NO_COPY: frugal: an attention variant needs the types dims, weights and state
// fails NO_CLEAR: frugal: an attention variant needs the types dims, weights and state
// fails NO_SAVE: frugal: an attention variant needs the types dims, weights and state
// fails NO_LOAD: frugal: an attention variant needs the types dims, weights and state
//
// C40: a cache that lacks one of the operations of the others fails to compile, whichever it is.
#include <cstddef>

#include "frugal/attention/variant.hpp"

namespace fg = frugal;
using fg::attention::sequence_id;

struct cache {
    struct snapshot_type {};
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
};

struct window {
    struct dims {};
#if !defined(NO_WEIGHTS)
    struct weights {};
#endif
    using state = cache;
};

template <class Variant>
struct layer {
    FRUGAL_REQUIRE_ATTENTION_VARIANT(Variant);
};
template struct layer<window>;

// fails PAIRING: frugal: attention::gdn needs a head pairing: write gdn<ops::head_pairing::grouped> for Hugging Face weights, gdn<ops::head_pairing::tiled> for GGUF
// fails SCAN: frugal: attention::gdn needs a scan: write ops::scan::recurrent or ops::scan::chunked<64>
// fails LAYOUT: frugal: attention::gdn needs a state layout: write ops::state_layout::key_major or value_major
// fails EMPTY_CHUNK: frugal: scan::chunked needs a chunk of at least one token; write scan::chunked<64>
#include <string_view>

#include "frugal/attention/gdn/gdn.hpp"

namespace ops = frugal::ops;

#if defined(PAIRING)
using pairing = ops::scan::recurrent;
#else
using pairing = ops::head_pairing::grouped;
#endif
#if defined(SCAN)
using scan = ops::head_pairing::grouped;
#elif defined(EMPTY_CHUNK)
using scan = ops::scan::chunked<0>;
#else
using scan = ops::scan::chunked<16>;
#endif
#if defined(LAYOUT)
struct layout {
    static constexpr std::string_view name = "my layout";
    static constexpr unsigned code = 3;
};
#else
using layout = ops::state_layout::value_major;
#endif

static_assert(frugal::attention::gdn<pairing, ops::activation::silu, scan, layout>::name == "gdn");
static_assert(!scan::name.empty());

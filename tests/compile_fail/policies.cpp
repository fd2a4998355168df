// fails UNKNOWN_OPTION: frugal: every option of policies must be a quant::list, a device (device::cpu<>), a weight loading (reuse::skip_resident, reuse::reload_always), a way to share inputs (reuse::incremental, reuse::memoised, reuse::shared, reuse::per_layer), to share activations (reuse::shared_activations, reuse::per_product) or an ops::cache_precision
// fails BARE_FORMAT: frugal: policies take a list of formats; write quant::list<your_format> even for a single one
// fails BARE_ISA: frugal: policies take a device; write device::cpu<isa> instead of the isa alone
// fails TWO_LISTS: frugal: policies got two format lists; write all formats into one quant::list
// fails TWO_DEVICES: frugal: policies got two devices; name one
// fails TWO_LOADINGS: frugal: policies got two weight loadings; name one
// fails TWO_INPUTS: frugal: policies got two ways to share inputs; name one
// fails TWO_ACTIVATIONS: frugal: policies got two ways to share activations; name one
// fails TWO_PRECISIONS: frugal: policies got two precisions of caches; name one
// fails KEY_VALUE_TYPE: frugal: cache_precision<KeyValue, Index> keeps keys and values as float, half, bfloat16 or quant::q8_0
// fails INDEX_TYPE: frugal: cache_precision<KeyValue, Index> keeps the indexer's keys as float, half, bfloat16 or std::int8_t
#include <type_traits>

#include "frugal/policies.hpp"

namespace fg = frugal;

#if defined(UNKNOWN_OPTION)
using bundle = fg::policies<int>;
#elif defined(BARE_FORMAT)
using bundle = fg::policies<fg::quant::q8_0>;
#elif defined(BARE_ISA)
using bundle = fg::policies<fg::isa::avx2>;
#elif defined(TWO_LISTS)
using bundle = fg::policies<fg::quant::list<fg::quant::q8_0>, fg::quant::list<fg::quant::f32>>;
#elif defined(TWO_DEVICES)
using bundle = fg::policies<fg::device::cpu<>, fg::device::cpu<fg::isa::avx2>>;
#elif defined(TWO_LOADINGS)
using bundle = fg::policies<fg::reuse::skip_resident, fg::reuse::reload_always>;
#elif defined(TWO_INPUTS)
using bundle = fg::policies<fg::reuse::shared, fg::reuse::per_layer>;
#elif defined(TWO_ACTIVATIONS)
using bundle = fg::policies<fg::reuse::shared_activations, fg::reuse::per_product>;
#elif defined(TWO_PRECISIONS)
using bundle = fg::policies<fg::ops::cache_precision<>, fg::ops::cache_precision<fg::half>>;
#elif defined(KEY_VALUE_TYPE)
using bundle = fg::policies<fg::quant::list<fg::quant::q8_0>>;
using wrong = fg::ops::cache_precision<double>::index;
#elif defined(INDEX_TYPE)
using bundle = fg::policies<fg::quant::list<fg::quant::q8_0>>;
using wrong = fg::ops::cache_precision<float, fg::quant::q8_0>::index;
#else
using bundle = fg::policies<fg::reuse::per_layer, fg::device::cpu<fg::isa::avx2>, fg::quant::list<fg::quant::q8_0>>;
static_assert(std::is_same_v<bundle::inputs, fg::reuse::per_layer>);
static_assert(std::is_same_v<bundle::device, fg::device::cpu<fg::isa::avx2>>);
static_assert(std::is_same_v<bundle::loading, fg::reuse::skip_resident>);
using defaults = fg::policies<>;
static_assert(std::is_same_v<defaults::formats, fg::quant::all> &&
              std::is_same_v<defaults::device, fg::default_device<fg::quant::all>>);
static_assert(std::is_same_v<defaults::inputs, fg::reuse::incremental>);
static_assert(std::is_same_v<defaults::precision, fg::ops::default_cache_precision>);
static_assert(fg::policy_bundle<defaults> && fg::policy_bundle<bundle> && !fg::policy_bundle<int>);
#endif

static_assert(bundle::formats::size == 1);

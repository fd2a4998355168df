// fails NO_RATIO: frugal: qwen4exp<Ratio> needs a compress ratio of at least 1 token a block; 4 is the released model's
#include "frugal/model/spec.hpp"

#if defined(NO_RATIO)
using spec = frugal::model::qwen4exp<0>;
#else
using spec = frugal::model::qwen4exp<8>;
#endif
static_assert(!spec::name.empty());

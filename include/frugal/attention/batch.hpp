#pragma once
/// A batch of tokens from several sequences, and the operations that every sequence state must offer, under the names that
/// variants and all code above them use. reuse/, whose shared inputs are sequence states too, lies below and has its own.
#include "frugal/reuse/inputs/batch.hpp"

FRUGAL_NAMESPACE_BEGIN

namespace attention {

using reuse::batch;
using reuse::check_sequence;
using reuse::is_one_of;
using reuse::parsing_state;
using reuse::read_length;
using reuse::rope_position;
using reuse::segment;
using reuse::sequence_id;
using reuse::sequence_state;
using reuse::tokens_of;
using reuse::validate;

}  // namespace attention

FRUGAL_NAMESPACE_END

// fails NO_ISA: frugal: device::cpu<Isa, Counters, Activations> takes an instruction set first; write isa::native or another tag of isa::all
// fails NO_COUNTERS: frugal: device::cpu<Isa, Counters, Activations> takes a way to count second; write counters_off or counters_on
// fails NO_ACTIVATIONS: frugal: device::cpu<Isa, Counters, Activations> takes a form of activations third; write device::f32_activations, device::q8_activations or device::bf16_activations
// fails PACKS_A_FORMAT: frugal: device::packed_cpu<Isa, Counters, Formats, Activations> takes the formats that it packs third; write quant::all or quant::list<...>
// fails PACKS_ACTIVATIONS: frugal: device::packed_cpu<Isa, Counters, Formats, Activations> takes the formats that it packs third
#include "frugal/device/cpu/packed_cpu.hpp"

namespace fg = frugal;

#if defined(NO_ISA)
using plain = fg::device::cpu<fg::counters_on>;
#elif defined(NO_COUNTERS)
using plain = fg::device::cpu<fg::isa::native, fg::device::q8_activations>;
#elif defined(NO_ACTIVATIONS)
using plain = fg::device::cpu<fg::isa::native, fg::counters_on, fg::quant::q8_0>;
#else
using plain = fg::device::cpu<fg::isa::native, fg::counters_on, fg::device::q8_activations>;
#endif
#if defined(PACKS_A_FORMAT)
using packed = fg::device::packed_cpu<fg::isa::native, fg::counters_on, fg::quant::q8_0>;
#elif defined(PACKS_ACTIVATIONS)
using packed = fg::device::packed_cpu<fg::isa::native, fg::counters_on, fg::device::q8_activations>;
#else
using packed = fg::device::packed_cpu<fg::isa::native, fg::counters_on, fg::quant::list<fg::quant::q8_0>>;
#endif

static_assert(sizeof(plain) > 0 && sizeof(packed) > 0);

// Fibers: a stack and a place to continue. Two ways to switch, chosen at compile time; both carry AddressSanitizer's annotations.
// A fiber may be abandoned: its stack is reused as it is, nothing on it is unwound.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../sanitizer.hpp"

#if TEST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(SIMT_FIBER_ASM) && !defined(SIMT_FIBER_UCONTEXT)
#if defined(__x86_64__) && defined(__ELF__)
#define SIMT_FIBER_ASM
#else
#define SIMT_FIBER_UCONTEXT
#endif
#endif

#if defined(SIMT_FIBER_UCONTEXT)
#include <ucontext.h>
#endif

namespace simt {

#if defined(SIMT_FIBER_ASM)
// System V x86-64: the callee-saved registers go on the stack, the stack pointer into *save. The floating point control words are
// left alone: kernels do not change them.
extern "C" void simt_fiber_switch(void** save, void* load);
asm(R"(
.pushsection .text
.weak simt_fiber_switch
.type simt_fiber_switch, @function
.p2align 4
simt_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_fiber_switch, .-simt_fiber_switch
.popsection
)");
#endif

class fiber {
public:
    using entry = void (*)(void*);

    /// Makes the fiber start `run(argument)` on its next switch. `run` must not return: it switches away for good.
    void prepare(void* stack, std::size_t bytes, entry run, void* argument) {
        stack_ = stack;
        bytes_ = bytes;
        run_ = run;
        argument_ = argument;
#if TEST_ASAN
        __asan_unpoison_memory_region(stack, bytes);  // an abandoned fiber leaves its marks
        fake_stack_ = nullptr;
#endif
#if defined(SIMT_FIBER_ASM)
        auto* top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15});
        *--top = nullptr;  // where a return address would be: ends a backtrace, and aligns the entry as after a call
        *--top = reinterpret_cast<void*>(&fiber::start);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        place_ = top;
#else
        getcontext(&place_);
        place_.uc_stack.ss_sp = stack;
        place_.uc_stack.ss_size = bytes;
        place_.uc_link = nullptr;
        makecontext(&place_, &fiber::start, 0);
#endif
    }

    /// Leaves `from`, continues `to`. `from_ends`: nobody will ever switch back to `from`.
    static void switch_to(fiber& from, fiber& to, bool from_ends = false) {
        coming_from() = &from;
        going_to() = &to;
#if TEST_ASAN
        __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack_, to.stack_, to.bytes_);
#else
        (void)from_ends;
#endif
#if defined(SIMT_FIBER_ASM)
        simt_fiber_switch(&from.place_, to.place_);
#else
        swapcontext(&from.place_, &to.place_);
#endif
#if TEST_ASAN
        __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
    }

private:
    static fiber*& coming_from() {
        static thread_local fiber* f = nullptr;
        return f;
    }
    static fiber*& going_to() {
        static thread_local fiber* f = nullptr;
        return f;
    }

    static void start() {
        fiber* self = going_to();
#if TEST_ASAN
        const void* bottom = nullptr;
        std::size_t bytes = 0;
        __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
        fiber* from = coming_from();
        if (from->stack_ == nullptr) {  // the OS thread's own stack: learn its bounds for the way back
            from->stack_ = const_cast<void*>(bottom);
            from->bytes_ = bytes;
        }
#endif
        self->run_(self->argument_);
        __builtin_unreachable();
    }

#if defined(SIMT_FIBER_ASM)
    void* place_ = nullptr;
#else
    ucontext_t place_{};
#endif
    void* stack_ = nullptr;
    std::size_t bytes_ = 0;
    entry run_ = nullptr;
    void* argument_ = nullptr;
#if TEST_ASAN
    void* fake_stack_ = nullptr;
#endif
};

}  // namespace simt

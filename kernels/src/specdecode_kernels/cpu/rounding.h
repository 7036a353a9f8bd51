/* Modes of rounding of this thread. */
#pragma once
#include "vectors.h"

/* From now on numbers below 2^-126 are zero, as factors and as results. Returns what `restore_rounding`
takes. Arithmetic that depends on it must be in functions that are not inlined here: compilers move it
across changes of modes. */
INLINE uint64_t flush_subnormals(void) {
    uint64_t before = 0;
#if defined(__SSE2__)
    before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr((unsigned)before | 0x8040);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1ul << 24) : "memory");
#endif
    return before;
}

INLINE void restore_rounding(uint64_t before) {
#if defined(__SSE2__)
    __builtin_ia32_ldmxcsr((unsigned)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before) : "memory");
#endif
}

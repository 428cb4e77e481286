// One function compiled for several instruction sets; the best that the machine has is taken when it is
// loaded. Not under sanitizers, whose own start comes after the choice, and not where the compiler cannot.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define OUTCROP_EVERY_ISA __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define OUTCROP_EVERY_ISA
#endif
// What such a function calls has to be part of it.
#define OUTCROP_INLINE inline __attribute__((always_inline))

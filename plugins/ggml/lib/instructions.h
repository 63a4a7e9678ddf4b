// This processor: the instruction sets that it has, for the code that is compiled for each of them, and its kind.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

static inline bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

static inline bool has_avx512() {
#ifdef BACKBAY_WITHOUT_AVX512 // for tests of the other code
    return false;
#endif
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static inline bool has_vnni() {
#ifdef BACKBAY_WITHOUT_VNNI // for tests of the other code
    return false;
#endif
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

static inline bool is_zen5() {
    unsigned version = 0, b, c, d;
    __get_cpuid(1, &version, &b, &c, &d);
    return __builtin_cpu_is("amd") && (version >> 8 & 15) + (version >> 20 & 255) == 0x1a;
}

#else

static inline bool is_zen5() { return false; }

#endif

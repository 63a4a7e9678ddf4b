// This processor: the instruction sets that it has, for the code that is compiled for each of them, and its kind.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

// Whether the processor has AMX for codes of 8 bits, and the system lets this process use it.
static inline bool has_tiles() {
#if defined(BACKBAY_EMULATED_TILES) // for tests
    return has_vnni();
#elif defined(__linux__)
    constexpr unsigned TILES = 1u << 24, INT8 = 1u << 25;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18; // of arch_prctl, as the kernel's documents say
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!has_vnni() || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    return d & TILES && d & INT8 && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static inline bool is_zen5() {
    unsigned version = 0, b, c, d;
    __get_cpuid(1, &version, &b, &c, &d);
    return __builtin_cpu_is("amd") && (version >> 8 & 15) + (version >> 20 & 255) == 0x1a;
}

#else

static inline bool is_zen5() { return false; }

#endif

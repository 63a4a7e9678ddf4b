// This processor: the instruction sets that it has, for the code that is compiled for each of them, and its kind.
#pragma once

#define INLINED __attribute__((always_inline)) static inline // GCC does not see that constant arrays then need no memory
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < n; i++) // small loops whose variables must be registers
#pragma GCC diagnostic ignored "-Wpsabi" // of vectors that functions return: all are inlined

#define AVX2_FEATURES "avx2,f16c,fma"
#define AVX2_TARGET __attribute__((target(AVX2_FEATURES)))
#if !defined(BACKBAY_EMULATED_AVX_VNNI) && (defined(__clang__) ? __clang_major__ >= 13 : __GNUC__ >= 11)
#define AVX_VNNI_COMPILES
#define AVX_VNNI_FEATURES "avxvnni," // beside these
#else // for tests, and for compilers that do not know it
#define AVX_VNNI_FEATURES ""
#endif
#define AVX512_FEATURES "avx512f,avx512dq,avx512bw,avx512vl,f16c,fma,prefer-vector-width=512"
#define VNNI_FEATURES "avx512vnni," // beside these
#define AVX512_TARGET __attribute__((target(AVX512_FEATURES)))

#if defined(__x86_64__)

#include <cpuid.h>
#include <cstdlib>
#include <cstring>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum Kind { X86_64, AVX2, AVX2_VNNI, AVX512, AVX512_VNNI, AMX, KINDS };

// The best kind of processor whose code may run: the environment limits it, for tests of the code for other kinds.
static inline Kind best_kind() {
    static const char *const names[KINDS] = {"x86-64", "avx2", "avx2-vnni", "avx512", "avx512-vnni", "amx"};
    const char *const limit = getenv("BACKBAY_CPU");
    for (int kind = 0; limit && kind < KINDS; kind++)
        if (strcmp(limit, names[kind]) == 0)
            return (Kind)kind;
    return AMX;
}

static const Kind BEST = best_kind(); // as it is when the library is loaded

static inline bool has_avx2() {
    return BEST >= AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

// Whether the processor has VNNI for the vectors of AVX2, as Intel's have that lack AVX-512.
static inline bool has_avx_vnni() {
    static const bool has = [] { // asking the processor takes microseconds on a virtual machine
#if defined(BACKBAY_EMULATED_AVX_VNNI)
        return true;
#elif defined(AVX_VNNI_COMPILES)
        constexpr unsigned AVX_VNNI = 1u << 4;
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & AVX_VNNI;
#else
        return false;
#endif
    }();
    return has && BEST >= AVX2_VNNI && has_avx2();
}

static inline bool has_avx512() {
    return BEST >= AVX512 && has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static inline bool has_vnni() { return BEST >= AVX512_VNNI && has_avx512() && __builtin_cpu_supports("avx512vnni"); }

// Whether the processor has AMX for codes of 8 bits, and the system lets this process use it.
static inline bool has_tiles() {
    if (BEST < AMX || !has_vnni())
        return false;
#if defined(BACKBAY_EMULATED_TILES) // for tests
    return true;
#elif defined(__linux__)
    constexpr unsigned TILES = 1u << 24, INT8 = 1u << 25;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18; // of arch_prctl, as the kernel's documents say
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILES && d & INT8 && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

static inline bool is_zen5() {
    unsigned version = 0, b, c, d;
    __get_cpuid(1, &version, &b, &c, &d);
    return __builtin_cpu_is("amd") && (version >> 8 & 15) + (version >> 20 & 255) == 0x1a;
}

// The instruction set that this processor runs, of those that code for vectors is compiled for; null if it is none.
static inline const char *vector_instructions() { return has_avx512() ? "AVX-512" : has_avx2() ? "AVX2" : nullptr; }

#else

static inline bool is_zen5() { return false; }
#if defined(__aarch64__)
static inline const char *vector_instructions() { return "NEON"; }
#else
static inline const char *vector_instructions() { return nullptr; }
#endif

#endif

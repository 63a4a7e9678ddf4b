// The products of processors with AVX-512, for tests on others: intrinsics are SIMDe's, functions for AVX2. BACKBAY_CPU=avx512 or
// avx512-vnni chooses the code, when the library is loaded.

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#define __builtin_cpu_supports(feature) 1
#define BACKBAY_EMULATED_TILES // so that no assembly is left
#include "../cpp/instructions.h"

#undef AVX512_FEATURES
#undef AVX512_TARGET
#undef VNNI_FEATURES
#define AVX512_FEATURES "avx2,f16c,fma"
#define AVX512_TARGET AVX2_TARGET
#define VNNI_FEATURES ""
#define asm(...) // what keeps an order of instructions

// Intrinsics that Debian's SIMDe lacks, or declares otherwise: each lane of x, changed.
template <class Result, class From, class To, class Given, class Change> static Result each_lane(Given x, Change change) {
    constexpr int N = sizeof(Given) / sizeof(From);
    From from[N];
    To to[N];
    Result result;
    memcpy(from, &x, sizeof from);
    for (int i = 0; i < N; i++)
        to[i] = (To)change(from[i]);
    memcpy(&result, to, sizeof result);
    return result;
}

static __m512i shifted(__m512i x, int n) {
    return each_lane<__m512i, int, int>(x, [n](int each) { return each >> n; });
}

static __m512i picked(__m512i a, __m512i places, __m512i b) {
    int both[32];
    memcpy(both, &a, sizeof a);
    memcpy(both + 16, &b, sizeof b);
    return each_lane<__m512i, int, int>(places, [&both](int place) { return both[place & 31]; });
}

static float largest(__m512 x) {
    float most = -INFINITY;
    each_lane<__m512, float, float>(x, [&most](float each) { return most = fmaxf(most, each); });
    return most;
}

static __m512 floats_of_halves(__m256i x) {
    const __m256 two[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
    __m512 result;
    memcpy(&result, two, sizeof result);
    return result;
}

#undef _mm512_madd_epi16
#undef _mm512_srai_epi32
#undef _mm512_permutex2var_epi32
#undef _mm512_reduce_max_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtsepi32_epi8
#undef _mm512_cvtepu8_epi32
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)
#define _mm512_srai_epi32(x, n) shifted(x, n)
#define _mm512_permutex2var_epi32(a, places, b) picked(a, places, b)
#define _mm512_reduce_max_ps(x) largest(x)
#define _mm512_cvtph_ps(x) floats_of_halves(x)
#define _mm512_cvtepi32_ps(x) each_lane<__m512, int, float>(x, [](int each) { return each; })
#define _mm512_cvtps_epi32(x) each_lane<__m512i, float, int>(x, lrintf)
#define _mm512_cvtepi32_epi16(x) each_lane<__m256i, int, short>(x, [](int each) { return each; })
#define _mm512_cvtsepi32_epi8(x) each_lane<__m128i, int, signed char>(x, [](int each) { return each > 127 ? 127 : each < -128 ? -128 : each; })
#define _mm512_cvtepu8_epi32(x) each_lane<__m512i, unsigned char, int>(x, [](int each) { return each; })

#include "../cpp/products.cpp"

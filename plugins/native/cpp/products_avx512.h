// Products by AVX-512, in the namespace NAME, with VNNI or without it: the few operations that differ between instruction sets.

namespace NAME {

#define TARGET __attribute__((target(FEATURES AVX512_FEATURES)))
#define INLINE TARGET INLINED
#define WIDE(name) _mm512_##name

typedef __m512i Ints;
typedef __m512 Vec;
constexpr long LANES = 16, PANELS = 3, MOST = 4;

#ifdef VNNI
INLINE Ints plus_products(Ints sum, Ints weights, Ints codes) { return _mm512_dpbusd_epi32(sum, weights, codes); }
#else
INLINE Ints with_signs(Ints x, Ints signs) { return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(signs), _mm512_setzero_si512(), x); }
#endif
INLINE Ints load(const void *x) { return _mm512_loadu_si512(x); }
INLINE void store(void *x, Ints y) { _mm512_store_si512(x, y); }
#include "products_vectors.h"
INLINE Vec of_bytes(const uint8_t *x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)x))); }
// The lower 16 bits of each lane, numbers in f16.
INLINE Vec of_halves(Ints x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }

#include "quads.h"

// 8 bytes of each row, interleaved, by groups of four.
INLINE void pairs(const char *const *rows, long offset, Ints *q) {
    const Ints a = load(rows[0] + offset), b = load(rows[1] + offset);
    const Ints even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    q[0] = _mm512_permutex2var_epi32(a, even, b);
    q[1] = _mm512_permutex2var_epi32(a, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
}

// A number in f16 of each row.
INLINE Vec halves(const char *const *rows, long offset) {
    const __m256i x = _mm256_castsi128_si256(eight_halves(rows, offset));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(x, eight_halves(rows + 8, offset), 1));
}

// Numbers in f16 of rows that are interleaved.
INLINE Vec interleaved_halves(const char *const *rows, long offset) {
    const __m128i a = _mm_loadu_si128((const __m128i *)(rows[0] + offset));
    const __m128i b = _mm_loadu_si128((const __m128i *)(rows[1] + offset));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}

// Scales and minima of q4_K, of 6 bits, in 12 bytes for each of 8 blocks of 8 interleaved rows: for rows 0 to 3 the scales
// and the minima, which also hold the upper bits for rows 4 to 7; then the lower bits of both for rows 4 to 7.
INLINE void interleaved_scales(const char *const *rows, long offset, uint8_t (*scales)[LANES], uint8_t (*minima)[LANES]) {
    const Ints firsts = _mm512_set_epi32(22, 19, 16, 13, 10, 7, 4, 1, 21, 18, 15, 12, 9, 6, 3, 0);
    const Ints thirds = _mm512_set_epi32(23, 20, 17, 14, 11, 8, 5, 2, 23, 20, 17, 14, 11, 8, 5, 2);
    const Ints fours = _mm512_set_epi32(4, 4, 4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0);
    const Ints lower = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    Ints s[2], m[2];
    for (int n = 0; n < 2; n++) {
        const Ints a = load(rows[n] + offset);
        const Ints b = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(rows[n] + offset + 64)));
        const Ints first = _mm512_permutex2var_epi32(a, firsts, b), third = _mm512_permutex2var_epi32(a, thirds, b);
        const Ints low = first & bytes(63);
        const Ints high = (_mm512_srlv_epi32(third, fours) & bytes(15)) | (_mm512_srli_epi32(first, 2) & bytes(48));
        s[n] = _mm512_permutex2var_epi32(low, lower, high);
        m[n] = _mm512_permutex2var_epi32(low, _mm512_add_epi32(lower, _mm512_set1_epi32(8)), high);
    }
    alignas(64) uint8_t even[4][LANES], odd[4][LANES];
    store(even, _mm512_unpacklo_epi64(s[0], s[1]));
    store(odd, _mm512_unpackhi_epi64(s[0], s[1]));
    for (int i = 0; i < 4; i++) {
        memcpy(scales[2 * i], even[i], LANES);
        memcpy(scales[2 * i + 1], odd[i], LANES);
    }
    store(even, _mm512_unpacklo_epi64(m[0], m[1]));
    store(odd, _mm512_unpackhi_epi64(m[0], m[1]));
    for (int i = 0; i < 4; i++) {
        memcpy(minima[2 * i], even[i], LANES);
        memcpy(minima[2 * i + 1], odd[i], LANES);
    }
}

// The largest magnitude in a block; NaN if it holds one.
INLINE float peak(const float *x) {
    const Vec a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q))
        return __builtin_nanf("");
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
}

// A block times a factor, rounded.
INLINE void round_block(const float *x, Vec factor, int8_t *codes) {
    for (int i = 0; i < BLOCK; i += LANES) {
        const Ints whole = _mm512_cvtps_epi32(times(_mm512_loadu_ps(x + i), factor));
        _mm_storeu_si128((__m128i *)(codes + i), _mm512_cvtsepi32_epi8(whole));
    }
}

#include "products_groups.h"

} // namespace NAME

#undef NAME
#undef FEATURES

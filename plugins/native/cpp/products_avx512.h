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
INLINE Ints repeated(__m128i x) { return _mm512_broadcast_i32x4(x); }
INLINE Ints joined(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
#include "products_vectors.h"
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
    return _mm512_cvtph_ps(two_sixteens(rows[0] + offset, rows[1] + offset));
}

// Of interleaved rows, 16 bytes, and the 16 that lie `apart` from them.
INLINE Ints interleaved_sixteens(const char *const *rows, long offset, long apart) {
    const char *const x = rows[0] + offset, *const y = rows[1] + offset;
    return joined(two_sixteens(x, x + apart), two_sixteens(y, y + apart));
}

// Of each four lanes, those of y whose bits are set, beside those of x.
template <int BITS> INLINE Ints blended(Ints x, Ints y) { return _mm512_mask_blend_epi32(0x1111 * BITS, x, y); }

// Of each half of interleaved rows, the N-th 16 bytes of their first four, and those of the others.
template <int N> INLINE Ints rows_of(Ints first, Ints second) {
    const Ints order = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    return _mm512_permutex2var_epi64(first, _mm512_add_epi64(order, _mm512_set1_epi64(2 * N)), second);
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

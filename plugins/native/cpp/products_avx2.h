// Products by AVX2, in the namespace NAME, with VNNI or without it: the few operations that differ between instruction sets.

namespace NAME {

#define TARGET __attribute__((target(FEATURES AVX2_FEATURES)))
#define INLINE TARGET INLINED
#define WIDE(name) _mm256_##name

typedef __m256i Ints;
typedef __m256 Vec;
constexpr long LANES = 8, PANELS = 2;

#if !defined(VNNI)
constexpr long MOST = 3;
// Numbers in 8 bits whose signs are those of others.
INLINE Ints with_signs(Ints x, Ints signs) { return _mm256_sign_epi8(x, signs); }
#else
constexpr long MOST = 4;
INLINE Ints plus_products(Ints sum, Ints weights, Ints codes) {
#if defined(AVX_VNNI_COMPILES)
    return _mm256_dpbusd_avx_epi32(sum, weights, codes);
#else // the same by AVX2: of even bytes, and of odd ones
    const Ints even = _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8), odd = _mm256_srai_epi16(codes, 8);
    const Ints products = _mm256_madd_epi16(weights & _mm256_set1_epi16(255), even);
    return _mm256_add_epi32(sum, _mm256_add_epi32(products, _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), odd)));
#endif
}
#endif
INLINE Ints load(const void *x) { return _mm256_loadu_si256((const __m256i *)x); }
INLINE void store(void *x, Ints y) { _mm256_store_si256((__m256i *)x, y); }
INLINE Ints repeated(__m128i x) { return _mm256_broadcastsi128_si256(x); }
#include "products_vectors.h"
// The lower 16 bits of each lane, numbers in f16.
INLINE Vec of_halves(Ints x) {
    const Ints low = x & numbers(0xffff);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}

// 16 bytes of each row: of rows i and 4 + i in the halves of r[i].
INLINE void sixteens(const char *const *rows, long offset, Ints *r) {
    for (int i = 0; i < 4; i++)
        r[i] = two_sixteens(rows[i] + offset, rows[4 + i] + offset);
}

// 16 bytes of each row, by groups of four.
INLINE void quads(const char *const *rows, long offset, Ints *q) {
    Ints r[4];
    sixteens(rows, offset, r);
    const Ints a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const Ints c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    q[0] = _mm256_unpacklo_epi64(a, c);
    q[1] = _mm256_unpackhi_epi64(a, c);
    q[2] = _mm256_unpacklo_epi64(b, d);
    q[3] = _mm256_unpackhi_epi64(b, d);
}

// 8 bytes of each row, interleaved, by groups of four.
INLINE void pairs(const char *const *rows, long offset, Ints *q) {
    const Vec a = _mm256_castsi256_ps(load(rows[0] + offset)), b = _mm256_castsi256_ps(load(rows[0] + offset + 32));
    q[0] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), 0xd8);
    q[1] = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
}

// A number in f16 of each row.
INLINE Vec halves(const char *const *rows, long offset) { return _mm256_cvtph_ps(eight_halves(rows, offset)); }

// Numbers in f16 of rows that are interleaved.
INLINE Vec interleaved_halves(const char *const *rows, long offset) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(rows[0] + offset)));
}

// Of interleaved rows, 16 bytes, and the 16 that lie `apart` from them.
INLINE Ints interleaved_sixteens(const char *const *rows, long offset, long apart) {
    return two_sixteens(rows[0] + offset, rows[0] + offset + apart);
}

// Of each four lanes, those of y whose bits are set, beside those of x.
template <int BITS> INLINE Ints blended(Ints x, Ints y) { return _mm256_blend_epi32(x, y, 17 * BITS); }

// Of each half of interleaved rows, the N-th 16 bytes of their first four, and those of the others.
template <int N> INLINE Ints rows_of(Ints first, Ints second) { return _mm256_permute2x128_si256(first, second, N ? 0x31 : 0x20); }

// The largest magnitude in a block; NaN if it holds one.
INLINE float peak(const float *x) {
    const Vec sign = floats(-0.0f);
    Vec most = floats(0), strange = floats(0);
    for (int i = 0; i < BLOCK; i += LANES) {
        const Vec y = _mm256_loadu_ps(x + i);
        most = _mm256_max_ps(most, _mm256_andnot_ps(sign, y));
        strange = _mm256_or_ps(strange, _mm256_cmp_ps(y, y, _CMP_UNORD_Q));
    }
    if (_mm256_movemask_ps(strange))
        return __builtin_nanf("");
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// A block times a factor, rounded.
INLINE void round_block(const float *x, Vec factor, int8_t *codes) {
    Ints whole[4];
    for (int i = 0; i < 4; i++)
        whole[i] = _mm256_cvtps_epi32(times(_mm256_loadu_ps(x + 8 * i), factor));
    const Ints packed = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
    const Ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)codes, _mm256_permutevar8x32_epi32(packed, order));
}

#define BY_ROWS
#include "products_groups.h"
#undef BY_ROWS

} // namespace NAME

#undef NAME
#undef FEATURES

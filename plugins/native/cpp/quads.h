// Bytes of 16 rows in the lanes of AVX-512, for functions with the attributes TARGET: to be included in a namespace.

// 16 bytes of each row: of row 4 n + i in the n-th quarter of r[i].
TARGET __attribute__((always_inline)) static inline void sixteens(const char *const *rows, long offset, __m512i *r) {
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + offset)));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(rows[4 + i] + offset)), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(rows[8 + i] + offset)), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(rows[12 + i] + offset)), 3);
    }
}

// 16 bytes of each row, by groups of four.
TARGET __attribute__((always_inline)) static inline void quads(const char *const *rows, long offset, __m512i *q) {
    __m512i r[4];
    sixteens(rows, offset, r);
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    q[0] = _mm512_unpacklo_epi64(a, c);
    q[1] = _mm512_unpackhi_epi64(a, c);
    q[2] = _mm512_unpacklo_epi64(b, d);
    q[3] = _mm512_unpackhi_epi64(b, d);
}

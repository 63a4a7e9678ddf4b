// Operations of products whose names differ by WIDE alone between instruction sets: to be included in a namespace.

INLINE Vec load_floats(const float *x) { return WIDE(load_ps)(x); }
INLINE void store_floats(float *x, Vec y) { WIDE(storeu_ps)(x, y); }
INLINE Ints bytes(int x) { return WIDE(set1_epi8)((char)x); }
INLINE Ints numbers(int32_t x) { return WIDE(set1_epi32)(x); }
INLINE Vec floats(float x) { return WIDE(set1_ps)(x); }
INLINE Ints shifted_right(Ints x, int n) { return WIDE(srl_epi32)(x, _mm_cvtsi32_si128(n)); }
INLINE Ints shifted_left(Ints x, int n) { return WIDE(sll_epi32)(x, _mm_cvtsi32_si128(n)); }
INLINE Ints extended_byte(Ints x, int n) { return WIDE(srai_epi32)(shifted_left(x, 24 - 8 * n), 24); }
INLINE Ints shuffled(Ints x, Ints order) { return WIDE(shuffle_epi8)(x, order); } // bytes, of each 16
INLINE Vec converted(Ints x) { return WIDE(cvtepi32_ps)(x); }
INLINE Vec times(Vec x, Vec y) { return WIDE(mul_ps)(x, y); }
INLINE Vec plus_product(Vec sum, Vec x, Vec y) { return WIDE(fmadd_ps)(x, y, sum); }
// A sum that is computed before what follows: else GCC computes all products first, more than registers hold.
INLINE Ints ordered(Ints sum) {
    asm("" : "+v"(sum));
    return sum;
}

// Sums of two products each, in 16 bits, and all of them added to sums.
INLINE Ints pair_products(Ints weights, Ints codes) { return WIDE(maddubs_epi16)(weights, codes); }
INLINE Ints plus_pair_products(Ints sum, Ints weights, Ints codes) {
    return ordered(WIDE(add_epi16)(sum, pair_products(weights, codes)));
}
INLINE Ints magnitudes(Ints x) { return WIDE(abs_epi8)(x); }
INLINE Ints plus_pairs(Ints sum, Ints pairs) {
    return ordered(WIDE(add_epi32)(sum, WIDE(madd_epi16)(pairs, WIDE(set1_epi16)(1))));
}

// Lanes of 16 bits, of which two fit into one: the sums of x[0] and x[1] by quarters, two lanes for each of both.
INLINE Ints paired(const Ints *x) { return WIDE(add_epi16)(WIDE(unpacklo_epi64)(x[0], x[1]), WIDE(unpackhi_epi64)(x[0], x[1])); }

// Lanes of 16 bits, of which four fit into one: the sums of x[0] to x[3] by quarters, a lane of 32 bits for each of them.
INLINE Ints sums_of_four(const Ints *x) {
    const Vec a = (Vec)paired(x), b = (Vec)paired(x + 2);
    const Ints even = (Ints)WIDE(shuffle_ps)(a, b, 0x88), odd = (Ints)WIDE(shuffle_ps)(a, b, 0xdd);
    return plus_pairs(numbers(0), WIDE(add_epi16)(even, odd));
}

// 16 bytes from x on, and 16 from y on.
INLINE __m256i two_sixteens(const void *x, const void *y) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)x)), _mm_loadu_si128((const __m128i *)y), 1);
}

// A number in f16 of each of 8 rows.
INLINE __m128i eight_halves(const char *const *rows, long offset) {
    __m128i x = _mm_setzero_si128();
#define INSERT(i) x = _mm_insert_epi16(x, half_at(rows[i] + offset), i)
    INSERT(0), INSERT(1), INSERT(2), INSERT(3), INSERT(4), INSERT(5), INSERT(6), INSERT(7);
#undef INSERT
    return x;
}

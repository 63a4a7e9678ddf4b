// Products of q4_0 or q8_0 as they lie in a file, and of a few columns, by AVX2, row by row: codes need no transposing, and a row's
// sum is that of lanes.

// Lane i of the result is the sum of the lanes of x[i].
INLINE Ints lane_sums(const Ints *x) {
    Ints fours[2];
    EACH(i, 2) {
        const Ints *y = x + 4 * i;
        fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(y[0], y[1]), _mm256_hadd_epi32(y[2], y[3]));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20), _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

// The sums of four products of a block's codes each.
template <Format F>
INLINE Ints row_products(const char *block, const Entry &e) {
    const Ints codes = load(e.codes);
    if (F == Q8_0) {
        const Ints weights = load(block + 2);
        return plus_pairs(numbers(0), pair_products(magnitudes(weights), with_signs(codes, weights)));
    }
    const Ints both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(block + 2)));
    const Ints weights = _mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)) & bytes(15);
    return plus_pairs(numbers(0), pair_products(weights, codes));
}

template <int C, Format F>
TARGET static void multiply_rows(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n++) {
            fetch.step();
            const Entry *e = entries + n * C;
            const Vec scale = halves(panel, n * LAYOUTS[F].size);
            Ints products[C][LANES];
            EACH(i, 8) EACH(c, C) products[c][i] = row_products<F>(panel[i] + n * LAYOUTS[F].size, e[c]);
            EACH(c, C) {
                const Ints sum = _mm256_add_epi32(lane_sums(products[c]), numbers(e[c].bias[0]));
                s[c] = plus_product(s[c], times(converted(sum), scale), floats(e[c].scale));
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

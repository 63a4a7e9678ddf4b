// Products of q4_K as ggml repacks it, and of a few columns, by AVX2: codes stay as they lie, eight bytes of a row meet eight codes of
// a column.

INLINE Ints eight_codes(const Entry &entry, int n) {
    int64_t eight;
    memcpy(&eight, entry.codes + 8 * n, sizeof eight);
    return _mm256_set1_epi64x(eight);
}

// The sums of four numbers each, of 16 bits, of rows 0 to 3 and of rows 4 to 7.
INLINE Ints row_sums(const Ints *x) {
    const Ints pairs = _mm256_hadd_epi32(plus_pairs(numbers(0), x[0]), plus_pairs(numbers(0), x[1]));
    return _mm256_permute4x64_epi64(pairs, 0xd8);
}

template <int C>
TARGET static void multiply_interleaved(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            fetch.step(8);
            const long start = n / 8 * 1152;
            const char *const codes_of_rows = rows[p * each] + start + 128;
            Part parts[8]; // their scales and minima alone
            unpack_interleaved_scales(rows + p * each, start, parts);
            for (int pair = 0; pair < 4; pair++) {
                const Entry *e = entries + (n + 2 * pair) * C; // of the block in the lower four bits; that in the upper ones follows
                Ints products[2][C][2];
                EACH(i, 4) EACH(half, 2) {
                    const Ints both = load(codes_of_rows + 256 * pair + 64 * i + 32 * half), weights[2] = {low(both), high(both)};
                    EACH(b, 2) EACH(c, C) {
                        const Ints codes = eight_codes(e[b * C + c], i);
                        Ints &sum = products[b][c][half];
                        sum = i ? plus_pair_products(sum, weights[b], codes) : pair_products(weights[b], codes);
                    }
                }
                EACH(b, 2) EACH(c, C) s[c] = plus_scaled_sums(s[c], row_sums(products[b][c]), load_floats(parts[2 * pair + b].scale), load_floats(parts[2 * pair + b].extra), e[b * C + c]);
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

// Products of weights as ggml repacks them, and of a few columns, by AVX2: codes stay as they lie, eight bytes of a row meet eight codes
// of a column.

INLINE Ints eight_codes(const Entry &entry, int n) {
    int64_t eight;
    memcpy(&eight, entry.codes + 8 * n, sizeof eight);
    return _mm256_set1_epi64x(eight);
}

// The sums of the quarters of x[0], rows 0 to 3, and of x[1], rows 4 to 7: of lanes of 16 bits, of which two fit into one.
INLINE Ints quarter_sums(const Ints *x) {
    const Vec a = _mm256_castsi256_ps(x[0]), b = _mm256_castsi256_ps(x[1]);
    const Ints even = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    return _mm256_permute4x64_epi64(plus_pairs(numbers(0), _mm256_add_epi16(even, odd)), 0xd8);
}

template <int C>
TARGET static void multiply_q4_0_x8(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    const Ints signs = bytes(0x88); // which ggml flips
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n++) {
            fetch.step();
            const long start = n * LAYOUTS[Q4_0_X8].size;
            const Entry *e = entries + n * C;
            Ints products[C][2];
            EACH(i, 2) EACH(half, 2) {
                const Ints both = load(panel[0] + start + 16 + 64 * i + 32 * half) ^ signs;
                EACH(c, C) {
                    Ints &sum = products[c][half];
                    const Ints first = eight_codes(e[c], i), second = eight_codes(e[c], 2 + i);
                    sum = i ? plus_pair_products(sum, low(both), first) : pair_products(low(both), first);
                    sum = plus_pair_products(sum, high(both), second);
                }
            }
            const Vec scale = interleaved_halves(panel, start);
            EACH(c, C) s[c] = plus_product(s[c], times(converted(_mm256_add_epi32(quarter_sums(products[c]), numbers(e[c].bias[0]))), scale), floats(e[c].scale));
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

template <int C>
TARGET static void multiply_q4_k_x8(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            fetch.step(8);
            const long start = n / 8 * LAYOUTS[Q4_K_X8].size;
            const UnitScales unit = interleaved_unit_scales(panel, start);
            EACH(pair, 4) { // of blocks, whose codes share bytes
                const Entry *e = entries + (n + 2 * pair) * C;
                Ints products[2][C][2];
                EACH(i, 4) EACH(half, 2) {
                    const Ints both = load(panel[0] + start + 128 + 256 * pair + 64 * i + 32 * half), weights[2] = {low(both), high(both)};
                    EACH(b, 2) EACH(c, C) {
                        Ints &sum = products[b][c][half];
                        const Ints codes = eight_codes(e[b * C + c], i);
                        sum = i ? plus_pair_products(sum, weights[b], codes) : pair_products(weights[b], codes);
                    }
                }
                EACH(b, 2) {
                    const Vec scale = scale_of(unit, 2 * pair + b), minimum = minimum_of(unit, 2 * pair + b);
                    EACH(c, C) s[c] = plus_scaled_sums(s[c], quarter_sums(products[b][c]), scale, minimum, e[b * C + c]);
                }
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

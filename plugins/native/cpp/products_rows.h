// Products of weights as they lie in a file, and of a few columns, by AVX2, row by row: codes need no transposing, and a row's sum is
// that of lanes.

// Lane i of the result is the sum of the lanes of x[i].
INLINE Ints lane_sums(const Ints *x) {
    Ints fours[2];
    EACH(i, 2) {
        const Ints *y = x + 4 * i;
        fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(y[0], y[1]), _mm256_hadd_epi32(y[2], y[3]));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20), _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

// Lanes of 16 bits, of which two fit into one: the sums of x[i] and x[i + 1] by quarters, two lanes for each of both.
INLINE Ints paired(const Ints *x) { return _mm256_add_epi16(_mm256_unpacklo_epi64(x[0], x[1]), _mm256_unpackhi_epi64(x[0], x[1])); }

// Lane i of the result is the sum of the lanes of 16 bits of x[i], of which eight fit into one.
INLINE Ints short_lane_sums(const Ints *x) {
    Ints fours[2];
    EACH(i, 2) {
        const Vec a = _mm256_castsi256_ps(paired(x + 4 * i)), b = _mm256_castsi256_ps(paired(x + 4 * i + 2));
        fours[i] = _mm256_add_epi16(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
    }
    const Ints low = _mm256_permute2x128_si256(fours[0], fours[1], 0x20), high = _mm256_permute2x128_si256(fours[0], fours[1], 0x31);
    return plus_pairs(numbers(0), _mm256_add_epi16(low, high));
}

// The same for lanes of which two fit into one, and for each half of x[i].
INLINE void half_lane_sums(const Ints *x, Ints *halves) {
    Ints fours[2];
    EACH(i, 2) fours[i] = _mm256_hadd_epi32(plus_pairs(numbers(0), paired(x + 4 * i)), plus_pairs(numbers(0), paired(x + 4 * i + 2)));
    halves[0] = _mm256_permute2x128_si256(fours[0], fours[1], 0x20);
    halves[1] = _mm256_permute2x128_si256(fours[0], fours[1], 0x31);
}

// The sums of two products of a block's codes each; for q8_0, of four.
template <Format F>
INLINE Ints row_products(const char *block, const Entry &e) {
    const Ints codes = load(e.codes);
    if (F == Q8_0) {
        const Ints weights = load(block + 2);
#ifdef VNNI
        return plus_products(numbers(0), weights ^ bytes(centre_of(Q8_0)), codes);
#else
        return plus_pairs(numbers(0), pair_products(magnitudes(weights), with_signs(codes, weights)));
#endif
    }
    const Ints both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(block + 2)));
    const Ints weights = _mm256_srlv_epi32(both, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)) & bytes(15);
    return pair_products(weights, codes);
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
                const Ints sum = F == Q8_0 ? lane_sums(products[c]) : short_lane_sums(products[c]);
                s[c] = plus_product(s[c], times(converted(_mm256_add_epi32(sum, numbers(e[c].bias[0]))), scale), floats(e[c].scale));
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

// Sums of a block's products, scaled, and its minimum are added to sums.
INLINE Vec plus_scaled_sums(Vec sum, Ints products, const Part &part, const Entry &e) {
    const Vec scaled = plus_product(sum, times(converted(products), load_floats(part.scale)), floats(e.scale));
    return plus_product(scaled, load_floats(part.extra), floats(e.minus));
}

// Codes of the n-th of the blocks of a unit that share their bytes, `first` and what follows.
template <Format F>
INLINE Ints unit_codes(const char *unit, int first, int n) {
    if (F == Q4_K) {
        const Ints both = load(unit + 16 + 16 * first);
        return n ? high(both) : low(both);
    }
    const Ints lower = load(unit + 16 * first + 32 * (n % 2)), two = load(unit + 128 + 8 * first);
    const Ints upper = n < 2 ? shifted_left(two, 4 - 2 * n) : shifted_right(two, 2 * n - 4);
    return (n < 2 ? low(lower) : high(lower)) | (upper & bytes(48));
}

template <Format F>
INLINE Vec plus_unit_sums(Vec sum, const Ints *products, const Part &part, const Entry &e) {
    if (F == Q4_K)
        return plus_scaled_sums(sum, short_lane_sums(products), part, e);
    Ints halves[2];
    half_lane_sums(products, halves);
    EACH(i, 2) {
        const Vec scale = load_floats(i ? part.extra : part.scale);
        sum = plus_product(sum, times(converted(_mm256_add_epi32(halves[i], numbers(e.bias[i]))), scale), floats(e.scale));
    }
    return sum;
}

// Of q4_K and q6_K, whose units have eight blocks: two or four of them share their bytes.
template <int C, Format F>
TARGET static void multiply_unit_rows(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    constexpr int SHARING = F == Q4_K ? 2 : 4;
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long unit = 0; unit < blocks / 8; unit++) {
            fetch.step(8);
            const long start = unit * LAYOUTS[F].size;
            Part parts[8]; // their scales alone
            F == Q4_K ? unpack_row_scales(panel, start, parts) : unpack_half_scales(panel, start, parts);
            for (int first = 0; first < 8; first += SHARING)
                EACH(n, SHARING) {
                    const Entry *e = entries + (8 * unit + first + n) * C;
                    Ints products[C][LANES];
                    EACH(i, 8) {
                        const Ints weights = unit_codes<F>(panel[i] + start, first, n);
                        EACH(c, C) products[c][i] = pair_products(weights, load(e[c].codes));
                    }
                    EACH(c, C) s[c] = plus_unit_sums<F>(s[c], products[c], parts[first + n], e[c]);
                }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

// Products of weights as they lie in a file, and of a few columns, by AVX2: codes need no transposing, as sums are transposed.

INLINE Ints sixteen_twice(const int8_t *codes) { return repeated(_mm_loadu_si128((const __m128i *)codes)); }

// The products of 32 weights of 4 bits of each row.
INLINE Ints products_of_halves(const Ints *first, const Ints *second, const Entry &e) {
    const Ints x = sixteen_twice(e.codes), y = sixteen_twice(e.codes + 16);
    Ints pairs[4];
    EACH(i, 4) pairs[i] = plus_pair_products(pair_products(first[i], x), second[i], y);
    return sums_of_four(pairs);
}

// Lane i of the result is the sum of the lanes of x[i].
INLINE Ints lane_sums(const Ints *x) {
    Ints fours[2];
    EACH(i, 2) {
        const Ints *y = x + 4 * i;
        fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(y[0], y[1]), _mm256_hadd_epi32(y[2], y[3]));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20), _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

// The sums of four products of a block of q8_0.
INLINE Ints eight_bit_products(Ints weights, Ints codes) {
#ifdef VNNI
    return plus_products(numbers(0), weights ^ bytes(centre_of(Q8_0)), codes);
#else
    return plus_pairs(numbers(0), pair_products(magnitudes(weights), with_signs(codes, weights)));
#endif
}

template <int C, Format F>
INLINE void block_products(const char *const *rows, long start, const Entry *e, Ints *products) {
    if constexpr (F == Q8_0) {
        Ints sums[C][LANES];
        EACH(i, 8) {
            const Ints weights = load(rows[i] + start + 2);
            EACH(c, C) sums[c][i] = eight_bit_products(weights, load(e[c].codes));
        }
        EACH(c, C) products[c] = lane_sums(sums[c]);
    } else {
        Ints w[4], lower[4], upper[4];
        sixteens(rows, start + 2, w);
        EACH(i, 4) lower[i] = low(w[i]), upper[i] = high(w[i]);
        EACH(c, C) products[c] = products_of_halves(lower, upper, e[c]);
    }
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
            Ints products[C];
            block_products<C, F>(panel, n * LAYOUTS[F].size, e, products);
            EACH(c, C) s[c] = plus_product(s[c], times(converted(_mm256_add_epi32(products[c], numbers(e[c].bias[0]))), scale), floats(e[c].scale));
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

// Sums of a block's products, scaled, and its minimum are added to sums.
INLINE Vec plus_scaled_sums(Vec sum, Ints products, Vec scale, Vec minimum, const Entry &e) {
    return plus_product(plus_product(sum, times(converted(products), scale), floats(e.scale)), minimum, floats(e.minus));
}

template <int C>
TARGET static void multiply_q4_k(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            fetch.step(8);
            const long start = n / 8 * LAYOUTS[Q4_K].size;
            const UnitScales unit = unit_scales(panel, start);
            EACH(pair, 4) { // of blocks, whose codes share bytes
                Ints w[2][4];
                EACH(half, 2) sixteens(panel, start + 16 + 32 * pair + 16 * half, w[half]);
                EACH(b, 2) {
                    const Entry *e = entries + (n + 2 * pair + b) * C;
                    const Vec scale = scale_of(unit, 2 * pair + b), minimum = minimum_of(unit, 2 * pair + b);
                    Ints codes[2][4];
                    EACH(half, 2) EACH(i, 4) codes[half][i] = b ? high(w[half][i]) : low(w[half][i]);
                    EACH(c, C) s[c] = plus_scaled_sums(s[c], products_of_halves(codes[0], codes[1], e[c]), scale, minimum, e[c]);
                }
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

// The same as sums_of_four, of lanes of which no more than two fit into one.
INLINE Ints sums_of_two_pairs(const Ints *x) {
    return _mm256_hadd_epi32(plus_pairs(numbers(0), paired(x)), plus_pairs(numbers(0), paired(x + 2)));
}

// Four blocks share their bytes: first the products of all their halves, then the sums in the blocks' order.
template <int C>
TARGET static void multiply_q6_k(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    const Ints upper = bytes(48);
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            const long start = n / 8 * LAYOUTS[Q6_K].size;
            const HalfScales unit = half_scales(panel, start);
            EACH(four, 2) {
                fetch.step(4);
                EACH(i, 8) EACH(k, 2) fetch_near(panel[i] + start, 2 * four + k);
                const Entry *e = entries + (n + 4 * four) * C;
                Ints products[4][2][C];
                EACH(half, 2) {
                    Ints lower[2][4], more[4];
                    EACH(b, 2) sixteens(panel, start + 64 * four + 32 * b + 16 * half, lower[b]);
                    sixteens(panel, start + 128 + 32 * four + 16 * half, more);
                    EACH(b, 4) {
                        Ints pairs[C][4];
                        EACH(i, 4) {
                            const Ints two = b < 2 ? shifted_left(more[i], 4 - 2 * b) : shifted_right(more[i], 2 * b - 4);
                            const Ints weights = (b < 2 ? low(lower[b][i]) : high(lower[b - 2][i])) | (two & upper);
                            EACH(c, C) pairs[c][i] = pair_products(weights, sixteen_twice(e[b * C + c].codes + 16 * half));
                        }
                        EACH(c, C) products[b][half][c] = _mm256_add_epi32(sums_of_two_pairs(pairs[c]), numbers(e[b * C + c].bias[half]));
                    }
                }
                EACH(b, 4) EACH(half, 2) {
                    const Vec scale = scale_of(unit, 2 * (4 * four + b) + half);
                    EACH(c, C) s[c] = plus_product(s[c], times(converted(products[b][half][c]), scale), floats(e[b * C + c].scale));
                }
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

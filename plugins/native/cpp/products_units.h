// Products of weights as they lie in a file, or repacked, and of a few columns, by AVX-512: codes go through registers.
//
// A single column meets 64 codes of a row at once, and sums are transposed in place of weights, which are more.

#ifdef VNNI
INLINE Ints plus_row_products(Ints sum, Ints weights, Ints codes) { return plus_products(sum, weights, codes); } // four in each lane
INLINE Ints sums_of_two(Ints x, Ints y) { return _mm512_madd_epi16(_mm512_packs_epi32(x, y), _mm512_set1_epi16(1)); }

// The sums of the quarters of x[0] to x[3], by quarters. Those of half a quarter fit into 16 bits.
INLINE Ints sums_of_quarters(const Ints *x) { return sums_of_two(sums_of_two(x[0], x[1]), sums_of_two(x[2], x[3])); }
#else
INLINE Ints plus_row_products(Ints sum, Ints weights, Ints codes) { return plus_pair_products(sum, weights, codes); } // two in each, in 16 bits
INLINE Ints sums_of_quarters(const Ints *x) { return sums_of_four(x); }
#endif

// The n-th quarters of all x are y[n].
INLINE void transpose_quarters(const Ints *x, Ints *y) {
    const Ints a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const Ints c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    y[0] = _mm512_shuffle_i32x4(a, c, 0x88), y[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    y[2] = _mm512_shuffle_i32x4(b, d, 0x88), y[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

INLINE Ints codes_of_two(const Entry &a, const Entry &b) {
    return joined(_mm256_loadu_si256((const __m256i *)a.codes), _mm256_loadu_si256((const __m256i *)b.codes));
}

// 16 codes of each of four blocks, those from `first` on.
INLINE Ints sixteens_of_four(const Entry *e, int first) {
    return joined(two_sixteens(e[0].codes + first, e[1].codes + first), two_sixteens(e[2].codes + first, e[3].codes + first));
}

// Words of two vectors of a row of q4_0, of which the second begins 4 words after the first: four blocks of 9 words, each with its
// scale, then its codes.
struct WordsOfBlocks {
    int16_t codes[32], scales[32], by_block[2][32]; // numbers of words; the scales of 8 rows lie in a vector, four of each

    constexpr WordsOfBlocks() : codes(), scales(), by_block() {
        for (int i = 0; i < 32; i++) {
            const int word = i / 8 * 9 + 1 + i % 8;
            codes[i] = (int16_t)(word < 32 ? word : 32 + word - 4);
            scales[i] = (int16_t)(i % 4 * 9);
            for (int n = 0; n < 2; n++)
                by_block[n][i] = (int16_t)(i % 16 / 8 * 32 + i % 8 * 4 + 2 * n + i / 16);
        }
    }
};
alignas(64) static constexpr WordsOfBlocks WORDS;

// Of a column whose blocks are a multiple of four.
TARGET static void multiply_q4_0(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    const Ints codes = load(WORDS.codes), scales = load(WORDS.scales), by_block[2] = {load(WORDS.by_block[0]), load(WORDS.by_block[1])};
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s = floats(0);
        for (long n = 0; n < blocks; n += 4) {
            fetch.step(4);
            const Entry *e = entries + n;
            const Ints x = sixteens_of_four(e, 0), y = sixteens_of_four(e, 16);
            Ints quarters[4], d[2] = {numbers(0), numbers(0)};
            EACH(r, 4) {
                Ints a[4];
                EACH(i, 4) {
                    const char *const row = panel[4 * r + i] + n * LAYOUTS[Q4_0].size;
                    const Ints first = load(row), w = _mm512_permutex2var_epi16(first, codes, load(row + 8));
                    d[r / 2] = _mm512_mask_permutexvar_epi16(d[r / 2], 15u << 4 * (4 * (r % 2) + i), scales, first);
                    a[i] = plus_row_products(plus_row_products(numbers(0), low(w), x), high(w), y);
                }
                quarters[r] = sums_of_quarters(a);
            }
            Ints products[4];
            transpose_quarters(quarters, products);
            EACH(b, 4) {
                const Ints two = _mm512_permutex2var_epi16(d[0], by_block[b / 2], d[1]);
                const Vec scale = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(two, b % 2));
                s = plus_product(s, times(converted(_mm512_add_epi32(products[b], numbers(e[b].bias[0]))), scale), floats(e[b].scale));
            }
        }
        store_floats(sums[0] + p * LANES, s);
    }
}

TARGET static void multiply_q4_k_alone(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            const long start = n / 8 * LAYOUTS[Q4_K].size;
            const UnitScales unit = unit_scales(panel, start);
            EACH(half, 2) {
                const Entry *e = entries + n + 4 * half; // blocks 0 and 2 in the lower four bits of bytes, 1 and 3 in the upper ones
                const Ints x[2] = {codes_of_two(e[0], e[2]), codes_of_two(e[1], e[3])};
                Ints quarters[2][4], products[2][4];
                EACH(r, 4) {
                    fetch.step();
                    Ints a[2][4];
                    EACH(i, 4) {
                        const Ints w = load(panel[4 * r + i] + start + 16 + 64 * half);
                        a[0][i] = plus_row_products(numbers(0), low(w), x[0]);
                        a[1][i] = plus_row_products(numbers(0), high(w), x[1]);
                    }
                    EACH(b, 2) quarters[b][r] = sums_of_quarters(a[b]);
                }
                EACH(b, 2) transpose_quarters(quarters[b], products[b]);
                EACH(b, 4) {
                    const Ints *pieces = &products[b % 2][b / 2 * 2];
                    const Vec sum = converted(_mm512_add_epi32(pieces[0], pieces[1]));
                    s = plus_product(s, times(sum, scale_of(unit, 4 * half + b)), floats(e[b].scale));
                    s = plus_product(s, minimum_of(unit, 4 * half + b), floats(e[b].minus));
                }
            }
        }
        store_floats(sums[0] + p * LANES, s);
    }
}

// Sums are centred from the start, so that those of eight products fit into 16 bits.
TARGET static void multiply_q6_k_alone(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    const Ints upper = bytes(48), centre = bytes(LAYOUTS[Q6_K].centre);
    const __m256i none = _mm256_setzero_si256(), two = _mm256_set1_epi16(2);
    const Ints left = joined(_mm256_set1_epi16(4), two), right = joined(none, two); // shifts, of blocks 0 and 1, and of 2 and 3
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            const long start = n / 8 * LAYOUTS[Q6_K].size;
            const HalfScales unit = half_scales(panel, start);
            EACH(half, 2) {
                const Entry *e = entries + n + 4 * half;
                const Ints x[2] = {codes_of_two(e[0], e[1]), codes_of_two(e[2], e[3])};
                Ints bias[2], quarters[2][4];
                EACH(b, 2) bias[b] = plus_row_products(numbers(0), centre, _mm512_sub_epi8(numbers(0), x[b]));
                EACH(r, 4) {
                    fetch.step();
                    Ints a[2][4];
                    EACH(i, 4) {
                        const char *const row = panel[4 * r + i] + start;
                        EACH(k, 2) fetch_near(row, 2 * half + k);
                        const Ints w = load(row + 64 * half);
                        const Ints h = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(row + 128 + 32 * half)));
                        a[0][i] = plus_row_products(bias[0], low(w) | (_mm512_sllv_epi16(h, left) & upper), x[0]);
                        a[1][i] = plus_row_products(bias[1], high(w) | (_mm512_srlv_epi16(h, right) & upper), x[1]);
                    }
                    EACH(b, 2) quarters[b][r] = sums_of_quarters(a[b]);
                }
                EACH(b, 2) {
                    Ints products[4]; // of halves of blocks
                    transpose_quarters(quarters[b], products);
                    EACH(i, 4) s = plus_product(s, times(converted(products[i]), scale_of(unit, 8 * half + 4 * b + i)), floats(e[2 * b + i / 2].scale));
                }
            }
        }
        store_floats(sums[0] + p * LANES, s);
    }
}

// The products of two blocks of a unit of q4_K, whose codes share bytes.
template <int C, Format F>
INLINE void multiply_pair(const char *const *rows, long start, int pair, const Entry *e, Ints (*products)[C][1]) {
    Ints w[8];
    F == Q4_K ? load_pair(rows, start, pair, w) : load_interleaved_pair(rows, start, pair, w);
    EACH(b, 2) {
        Part part; // its codes, which the compiler keeps in registers
        EACH(i, 8) store(part.codes[i], b ? high(w[i]) : low(w[i]));
        sum_products<MINIMUM, C, 1, 0, 8>(&part, 0, e + b * C, products[b]);
    }
}

// Scales are stored first.
template <int C, Format F>
TARGET static void multiply_q4_k(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        for (long n = 0; n < blocks; n += 8) {
            fetch.step(8);
            const long start = n / 8 * LAYOUTS[F].size;
            Part parts[8]; // their scales and minima alone
            store_scales(F == Q4_K ? unit_scales(panel, start) : interleaved_unit_scales(panel, start), parts);
            for (int pair = 0; pair < 4; pair++) {
                const Entry *e = entries + (n + 2 * pair) * C;
                Ints products[2][C][1];
                multiply_pair<C, F>(panel, start, pair, e, products);
                EACH(b, 2) {
                    const Vec scale = load_floats(parts[2 * pair + b].scale), minimum = load_floats(parts[2 * pair + b].extra);
                    EACH(c, C) s[c] = plus_product(s[c], times(converted(products[b][c][0]), scale), floats(e[b * C + c].scale));
                    EACH(c, C) s[c] = plus_product(s[c], minimum, floats(e[b * C + c].minus));
                }
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

// Four blocks share their bytes: first the products of all their halves, then the sums in the blocks' order.
template <int C>
TARGET static void multiply_q6_k(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s[C];
        EACH(c, C) s[c] = floats(0);
        Part parts[8]; // their scales alone
        for (long n = 0; n < blocks; n += 4) {
            fetch.step(4);
            const long start = n / 8 * LAYOUTS[Q6_K].size, half = n / 4 % 2;
            if (half == 0)
                unpack_half_scales(panel, start, parts);
            const Entry *e = entries + n * C;
            Ints products[4][2][C][1];
            EACH(piece, 2) {
                Ints w[4][4];
                load_piece(panel, start, half, piece, w);
                EACH(b, 4) {
                    Part part; // its codes, which the compiler keeps in registers
                    EACH(i, 4) store(part.codes[4 * piece + i], w[b][i]);
                    if (piece)
                        sum_products<HALVES, C, 1, 4, 8>(&part, 0, e + b * C, products[b][1]);
                    else
                        sum_products<HALVES, C, 1, 0, 4>(&part, 0, e + b * C, products[b][0]);
                }
            }
            EACH(b, 4) EACH(piece, 2) {
                const Vec scale = load_floats(piece ? parts[4 * half + b].extra : parts[4 * half + b].scale);
                EACH(c, C) s[c] = plus_product(s[c], times(converted(products[b][piece][c][0]), scale), floats(e[b * C + c].scale));
            }
        }
        EACH(c, C) store_floats(sums[c] + p * LANES, s[c]);
    }
}

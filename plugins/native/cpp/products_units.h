// Products of weights as they lie in a file, or repacked, and of a few columns, by AVX-512: scales of q4_K and q6_K are stored, codes go
// through registers. One column meets 16 bytes of a row as they lie, and sums are transposed in place of weights, which are more.

INLINE Ints in_quarters(const int8_t *codes) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)codes)); }

// Sums of eight products in each lane, of weights of 4 bits.
INLINE Ints eight_products(Ints a, Ints x, Ints b, Ints y) {
#ifdef VNNI
    return plus_products(plus_products(numbers(0), a, x), b, y);
#else
    return plus_pairs(numbers(0), plus_pair_products(pair_products(a, x), b, y));
#endif
}

INLINE Ints sums_of_two(Ints x, Ints y) { return _mm512_madd_epi16(_mm512_packs_epi32(x, y), _mm512_set1_epi16(1)); }

// The sums of the quarters of x[i], in the rows' order. The products of 16 codes fit into 16 bits.
INLINE Ints sums_of_quarters(const Ints *x) { return sums_of_two(sums_of_two(x[0], x[1]), sums_of_two(x[2], x[3])); }

TARGET static void multiply_q4_0(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    for (long p = 0; p < PANELS; p++) {
        const char *const *panel = rows + p * each;
        Vec s = floats(0);
        for (long n = 0; n < blocks; n++) {
            fetch.step();
            const Entry &e = entries[n];
            const Ints x = in_quarters(e.codes), y = in_quarters(e.codes + 16);
            Ints w[4], products[4];
            sixteens(panel, n * 18 + 2, w);
            EACH(i, 4) products[i] = eight_products(low(w[i]), x, high(w[i]), y);
            const Ints sum = _mm512_add_epi32(sums_of_quarters(products), numbers(e.bias[0]));
            s = plus_product(s, times(converted(sum), halves(panel, n * 18)), floats(e.scale));
        }
        store_floats(sums[0] + p * LANES, s);
    }
}

// The products of two blocks of a unit of q4_K, whose codes share bytes.
template <int C, Format F>
INLINE void multiply_pair(const char *const *rows, long start, int pair, const Entry *e, Ints (*products)[C][1]) {
    Ints w[8];
    if constexpr (C == 1 && F == Q4_K) {
        EACH(i, 2) sixteens(rows, start + 16 + 32 * pair + 16 * i, w + 4 * i);
        EACH(b, 2) {
            const Ints x = in_quarters(e[b].codes), y = in_quarters(e[b].codes + 16);
            Ints quarters[4];
            EACH(i, 4) quarters[i] = eight_products(b ? high(w[i]) : low(w[i]), x, b ? high(w[4 + i]) : low(w[4 + i]), y);
            products[b][0][0] = sums_of_quarters(quarters);
        }
        return;
    }
    F == Q4_K ? load_pair(rows, start, pair, w) : load_interleaved_pair(rows, start, pair, w);
    EACH(b, 2) {
        Part part; // its codes, which the compiler keeps in registers
        EACH(i, 8) store(part.codes[i], b ? high(w[i]) : low(w[i]));
        sum_products<MINIMUM, C, 1, 0, 8>(&part, 0, e + b * C, products[b]);
    }
}

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
            F == Q4_K ? unpack_row_scales(panel, start, parts) : unpack_interleaved_scales(panel, start, parts);
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

// Products of unpacked weights: PANELS * LANES rows by up to MOST columns at a time, whose sums stay in registers.
//
// A sum of codes is exact. Blocks are added up in their order, so that a result depends on no other column, and not on
// the number of threads.

constexpr long ROWS = PANELS * LANES;

struct Scratch {
    Part parts[PANELS][CHUNK];
    alignas(64) float sums[BATCH + MOST][ROWS];
};

INLINE Ints group(const Entry &entry, int n) {
    int32_t four;
    memcpy(&four, entry.codes + 4 * n, sizeof four);
    return numbers(four);
}

// The sums of the products of groups of codes, of P panels whose parts lie `step` apart, and of C columns.
template <Scales S, int C, int P, int FIRST, int END>
INLINE void sum_products(const Part *parts, long step, const Entry *e, Ints (*s)[P]) {
    EACH(c, C) EACH(p, P) s[c][p] = numbers(e[c].bias[FIRST / 4]);
#ifdef VNNI
#pragma GCC unroll 8
    for (int g = FIRST; g < END; g++) {
        Ints weights[P];
        EACH(p, P) weights[p] = load(parts[p * step].codes[g]);
        EACH(c, C) {
            const Ints codes = group(e[c], g);
            EACH(p, P) s[c][p] = plus_products(s[c][p], weights[p], codes);
        }
    }
#else
    // So many products fit into 16 bits: of 15, 63 or 128 with 127 at most, two at a time.
    constexpr int RUN = S == SIGNED ? 1 : S == HALVES ? 2 : 8;
#pragma GCC unroll 8
    for (int g = FIRST; g < END; g += RUN) {
        Ints pairs[C][P];
        EACH(i, RUN) {
            Ints weights[P];
            EACH(p, P) weights[p] = load(parts[p * step].codes[g + i]);
            EACH(c, C) {
                const Ints codes = group(e[c], g + i);
                EACH(p, P) {
                    if (S == SIGNED)
                        pairs[c][p] = pair_products(magnitudes(weights[p]), with_signs(codes, weights[p]));
                    else
                        pairs[c][p] = i ? plus_pair_products(pairs[c][p], weights[p], codes) : pair_products(weights[p], codes);
                }
            }
        }
        EACH(c, C) EACH(p, P) s[c][p] = plus_pairs(s[c][p], pairs[c][p]);
    }
#endif
}

// The products of groups of codes, scaled, are added to sums.
template <Scales S, int C, int FIRST, int END>
INLINE void add_codes(const Part (*parts)[CHUNK], long n, const Entry *e, const float *(*scale)(const Part &), Vec (*sums)[PANELS]) {
    Ints s[C][PANELS];
    sum_products<S, C, PANELS, FIRST, END>(&parts[0][n], CHUNK, e, s);
    EACH(c, C) {
        const Vec factor = floats(e[c].scale);
        EACH(p, PANELS) sums[c][p] = plus_product(sums[c][p], times(converted(s[c][p]), load_floats(scale(parts[p][n]))), factor);
    }
}

INLINE const float *scale_of(const Part &part) { return part.scale; }
INLINE const float *extra_of(const Part &part) { return part.extra; }

template <int C, Scales S>
INLINE void add_block(const Part (*parts)[CHUNK], long n, const Entry *e, Vec (*sums)[PANELS]) {
    add_codes<S, C, 0, S == HALVES ? 4 : 8>(parts, n, e, scale_of, sums);
    if (S == HALVES)
        add_codes<S, C, 4, 8>(parts, n, e, extra_of, sums);
    if (S == MINIMUM)
        EACH(c, C) {
            const Vec minus = floats(e[c].minus);
            EACH(p, PANELS) sums[c][p] = plus_product(sums[c][p], load_floats(parts[p][n].extra), minus);
        }
}

template <int C, Scales S>
TARGET static void add_tile(const Part (*parts)[CHUNK], long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    Vec s[C][PANELS];
    EACH(c, C) EACH(p, PANELS) s[c][p] = load_floats(sums[c] + p * LANES);
    for (long n = 0; n < blocks; n++) {
        fetch.step();
        add_block<C, S>(parts, n, entries + n * C, s);
    }
    EACH(c, C) EACH(p, PANELS) store_floats(sums[c] + p * LANES, s[c][p]);
}

template <Scales S, int C = 1>
INLINE void add_columns(long count, const Part (*parts)[CHUNK], long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    if constexpr (C < MOST)
        if (count > C)
            return add_columns<S, C + 1>(count, parts, blocks, entries, sums, fetch);
    add_tile<C, S>(parts, blocks, entries, sums, fetch);
}

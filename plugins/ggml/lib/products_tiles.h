// Products of unpacked weights: 2 * LANES rows by up to MOST columns at a time, whose sums stay in registers.
//
// A sum of codes is exact. Blocks are added up in their order, so that a result depends on no other column, and not on
// the number of threads.

constexpr long ROWS = 2 * LANES;

struct Scratch {
    Part parts[2][CHUNK];
    alignas(64) float sums[BATCH + MOST][ROWS];
};

// Memory that is fetched meanwhile.
struct Fetch {
    const char *next, *end;
};

INLINE Ints group(const Entry &entry, int n) {
    int32_t four;
    memcpy(&four, entry.codes + 4 * n, sizeof four);
    return numbers(four);
}

INLINE Vec scaled(Ints sum, const float *scale) { return times(converted(sum), load_floats(scale)); }

// Add a block's products to sums.
template <int C, Scales S>
INLINE void add_block(const Part &a, const Part &b, const Entry *e, Vec (*sums)[2]) {
    Ints s[C][2];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
        s[c][0] = s[c][1] = numbers(e[c].bias[0]);
#pragma GCC unroll 8
    for (int n = 0; n < (S == HALVES ? 4 : 8); n++) {
        const Ints x = load(a.codes[n]), y = load(b.codes[n]);
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            const Ints codes = group(e[c], n);
            s[c][0] = plus_products(s[c][0], x, codes);
            s[c][1] = plus_products(s[c][1], y, codes);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
        const Vec scale = floats(e[c].scale);
        sums[c][0] = plus_product(sums[c][0], scaled(s[c][0], a.scale), scale);
        sums[c][1] = plus_product(sums[c][1], scaled(s[c][1], b.scale), scale);
    }
    if (S == MINIMUM) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            const Vec minus = floats(e[c].minus);
            sums[c][0] = plus_product(sums[c][0], load_floats(a.extra), minus);
            sums[c][1] = plus_product(sums[c][1], load_floats(b.extra), minus);
        }
    }
    if (S == HALVES) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++)
            s[c][0] = s[c][1] = numbers(e[c].bias[1]);
#pragma GCC unroll 8
        for (int n = 4; n < 8; n++) {
            const Ints x = load(a.codes[n]), y = load(b.codes[n]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) {
                const Ints codes = group(e[c], n);
                s[c][0] = plus_products(s[c][0], x, codes);
                s[c][1] = plus_products(s[c][1], y, codes);
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) {
            const Vec scale = floats(e[c].scale);
            sums[c][0] = plus_product(sums[c][0], scaled(s[c][0], a.extra), scale);
            sums[c][1] = plus_product(sums[c][1], scaled(s[c][1], b.extra), scale);
        }
    }
}

template <int C, Scales S>
TARGET static void add_tile(const Part *a, const Part *b, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch fetch) {
    const long each = (fetch.end - fetch.next) / blocks + 64;
    Vec s[C][2];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
        s[c][0] = load_floats(sums[c]), s[c][1] = load_floats(sums[c] + LANES);
    for (long n = 0; n < blocks; n++) {
        for (const char *end = fetch.next + each; fetch.next < end && fetch.next < fetch.end; fetch.next += 64)
            _mm_prefetch(fetch.next, _MM_HINT_T1);
        add_block<C, S>(a[n], b[n], entries + n * C, s);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; c++)
        store_floats(sums[c], s[c][0]), store_floats(sums[c] + LANES, s[c][1]);
}

template <Scales S>
TARGET static void add_columns(long count, const Part *a, const Part *b, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch fetch) {
    switch (count) {
    case 1: return add_tile<1, S>(a, b, blocks, entries, sums, fetch);
    case 2: return add_tile<2, S>(a, b, blocks, entries, sums, fetch);
    case 3: return add_tile<3, S>(a, b, blocks, entries, sums, fetch);
    case 4: return add_tile<4, S>(a, b, blocks, entries, sums, fetch);
    case 5: return add_tile<5, S>(a, b, blocks, entries, sums, fetch);
    default: return add_tile<6, S>(a, b, blocks, entries, sums, fetch);
    }
}

// The starts of ROWS rows; those past the last row repeat it.
TARGET static long find_rows(const Weights &w, long group, const char **rows) {
    const long interleaved = LAYOUTS[w.format].rows, count = ROWS / interleaved, last = w.rows / interleaved - 1;
    for (long i = 0; i < count; i++) {
        const long row = group * count + i;
        rows[i] = w.data + (row < last ? row : last) * w.stride;
    }
    return count;
}

TARGET static void multiply_group(Scratch &s, const Weights &w, const Columns &x, const Result &y, long group, long low_tile, long high_tile) {
    const char *rows[ROWS];
    const long count = find_rows(w, group, rows), first = x.first(low_tile), columns = x.first(high_tile) - first, tiles = high_tile - low_tile;
    const long chunk = tiles > 1 ? CHUNK : LAYOUTS[w.format].blocks > FEW ? LAYOUTS[w.format].blocks : FEW;
    // While this group is multiplied, the next one is fetched.
    const char *next = rows[0] + count * w.stride;
    const long lines = count * w.stride / 64;
    long step = 0;
    const long steps = (w.blocks + chunk - 1) / chunk * tiles;
    memset(s.sums, 0, columns * sizeof s.sums[0]);
    for (long block = 0; block < w.blocks; block += chunk) {
        const long blocks = w.blocks - block < chunk ? w.blocks - block : chunk;
        unpack(w.format, rows, block, blocks, s.parts[0]);
        unpack(w.format, rows + count / 2, block, blocks, s.parts[1]);
        for (long tile = low_tile; tile < high_tile; tile++, step++) {
            const long column = x.first(tile), wide = x.first(tile + 1) - column;
            const Fetch fetch = {next + lines * step / steps * 64, next + lines * (step + 1) / steps * 64};
            const auto add = LAYOUTS[w.format].scales == ONE ? add_columns<ONE> : LAYOUTS[w.format].scales == MINIMUM ? add_columns<MINIMUM> : add_columns<HALVES>;
            add(wide, s.parts[0], s.parts[1], blocks, x.block(tile, block), s.sums + (column - first), fetch);
        }
    }
    const long row = group * ROWS, left = w.rows - row;
    for (long c = 0; c < columns; c++) {
        float *out = y.data + (first + c) * y.stride + row;
        if (left >= ROWS)
            memcpy(out, s.sums[c], sizeof s.sums[c]);
        else
            memcpy(out, s.sums[c], left * sizeof(float));
    }
}

// The part of a product that belongs to a thread.
TARGET static void multiply(const Weights &w, const Columns &x, const Result &y, int thread, int threads) {
    Scratch s;
    const long groups = (w.rows + ROWS - 1) / ROWS, tiles = x.tiles();
    const long near = NEAR / (long)(MOST * x.blocks * sizeof(Entry)), most = BATCH / MOST;
    const long batch = near < 4 ? 4 : near < most ? near : most;
    for (long low_tile = 0; low_tile < tiles; low_tile += batch) {
        const long high_tile = low_tile + batch < tiles ? low_tile + batch : tiles;
        for (long group = groups * thread / threads; group < groups * (thread + 1) / threads; group++)
            multiply_group(s, w, x, y, group, low_tile, high_tile);
    }
}

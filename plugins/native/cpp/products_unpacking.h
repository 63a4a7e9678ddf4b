// Unpacking of weights: from the blocks of LANES rows to codes that are multiplied with those of columns.

// A block of LANES rows: groups of four adjoining codes of each row.
struct Part {
    alignas(64) uint8_t codes[8][4 * LANES];
    alignas(64) float scale[LANES];
    alignas(64) float extra[LANES]; // the minimum, or the scale of the second half
};

INLINE Ints low(Ints x) { return x & bytes(15); }
INLINE Ints high(Ints x) { return shifted_right(x, 4) & bytes(15); }

INLINE void unpack_q4_0(const char *const *rows, long block, Part *part) {
    Ints q[4];
    quads(rows, block * 18 + 2, q);
    for (int i = 0; i < 4; i++) {
        store(part->codes[i], low(q[i]));
        store(part->codes[4 + i], high(q[i]));
    }
    store_floats(part->scale, halves(rows, block * 18));
}

INLINE void unpack_q4_0_x8(const char *const *rows, long block, Part *part) {
    const Ints sign = bytes(8); // which ggml flips
    for (int half = 0; half < 2; half++) {
        Ints q[2];
        pairs(rows, block * 144 + 16 + 64 * half, q);
        for (int i = 0; i < 2; i++) {
            store(part->codes[2 * half + i], low(q[i]) ^ sign);
            store(part->codes[4 + 2 * half + i], high(q[i]) ^ sign);
        }
    }
    store_floats(part->scale, interleaved_halves(rows, block * 144));
}

INLINE void unpack_q8_0(const char *const *rows, long block, Part *part) {
    for (int half = 0; half < 2; half++) {
        Ints q[4];
        quads(rows, block * 34 + 2 + 16 * half, q);
        for (int i = 0; i < 4; i++)
            store(part->codes[4 * half + i], q[i] ^ bytes(centre_of(Q8_0)));
    }
    store_floats(part->scale, halves(rows, block * 34));
}

// Of LANES rows of q4_K, the scales and minima of a unit's blocks: bytes of lanes, four blocks in each.
struct UnitScales {
    Ints scales[2], minima[2];
    Vec d, dmin;
};

INLINE Vec byte_times(Ints x, int n, Vec factor) { return times(converted(shifted_right(x, 8 * n) & numbers(255)), factor); }
INLINE Vec scale_of(const UnitScales &unit, int block) { return byte_times(unit.scales[block / 4], block % 4, unit.d); }
INLINE Vec minimum_of(const UnitScales &unit, int block) { return byte_times(unit.minima[block / 4], block % 4, unit.dmin); }

// Of rows as they lie in a file; `start` is where their unit begins.
INLINE UnitScales unit_scales(const char *const *rows, long start) {
    const Ints six = bytes(63), upper = bytes(48);
    Ints q[4];
    quads(rows, start, q); // d and dmin, then 12 bytes of scales
    return {
        {q[1] & six, low(q[3]) | (shifted_right(q[1], 2) & upper)},
        {q[2] & six, high(q[3]) | (shifted_right(q[2], 2) & upper)},
        of_halves(q[0]),
        of_halves(shifted_right(q[0], 16)),
    };
}

// Of eight interleaved rows: in 12 bytes for each block, for rows 0 to 3 the scales and the minima, which also hold the upper bits for
// rows 4 to 7; then the lower bits of both for rows 4 to 7.
INLINE UnitScales interleaved_unit_scales(const char *const *rows, long start) {
    Ints x[3]; // 16 bytes each of blocks 0 to 3, and of blocks 4 to 7
    EACH(i, 3) x[i] = interleaved_sixteens(rows, start + 32 + 16 * i, 48);
    const Ints first = blended<2>(blended<4>(x[0], x[1]), x[2]), second = blended<4>(blended<9>(x[0], x[1]), x[2]);
    const Ints third = blended<9>(blended<2>(x[0], x[1]), x[2]), row = repeated(_mm_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303));
    // then the blocks' bytes of a row, whose order is 0, 3, 2, 1, then 1, 0, 3, 2, then 2, 1, 0, 3
    const Ints scales = shuffled(first, row | numbers(0x04080c00)), minima = shuffled(second, row | numbers(0x080c0004));
    const Ints both = shuffled(third, row | numbers(0x0c000408)), six = bytes(63), upper = bytes(48);
    const Ints more_scales = low(both) | (shifted_right(scales, 2) & upper), more_minima = high(both) | (shifted_right(minima, 2) & upper);
    return {
        {rows_of<0>(scales & six, more_scales), rows_of<1>(scales & six, more_scales)},
        {rows_of<0>(minima & six, more_minima), rows_of<1>(minima & six, more_minima)},
        interleaved_halves(rows, start),
        interleaved_halves(rows, start + 16),
    };
}

INLINE void store_scales(const UnitScales &unit, Part *parts) {
    EACH(n, 8) {
        store_floats(parts[n].scale, scale_of(unit, n));
        store_floats(parts[n].extra, minimum_of(unit, n));
    }
}

// Of two blocks of a unit, the codes of one in the lower four bits of bytes, those of the other in the upper ones.
INLINE void load_pair(const char *const *rows, long start, int pair, Ints *q) {
    quads(rows, start + 16 + 32 * pair, q);
    quads(rows, start + 32 + 32 * pair, q + 4);
}

INLINE void unpack_q4_k(const char *const *rows, long block, Part *parts) {
    const long start = block / 8 * 144;
    store_scales(unit_scales(rows, start), parts);
    Ints q[8];
    for (int pair = 0; pair < 4; pair++) {
        load_pair(rows, start, pair, q);
        for (int i = 0; i < 8; i++) {
            store(parts[2 * pair].codes[i], low(q[i]));
            store(parts[2 * pair + 1].codes[i], high(q[i]));
        }
    }
}

// As load_pair.
INLINE void load_interleaved_pair(const char *const *rows, long start, int pair, Ints *q) {
    EACH(i, 4) pairs(rows, start + 128 + 256 * pair + 64 * i, q + 2 * i);
}

INLINE void unpack_q4_k_x8(const char *const *rows, long block, Part *parts) {
    const long start = block / 8 * 1152;
    store_scales(interleaved_unit_scales(rows, start), parts);
    Ints q[8];
    for (int pair = 0; pair < 4; pair++) {
        load_interleaved_pair(rows, start, pair, q);
        for (int i = 0; i < 8; i++) {
            store(parts[2 * pair].codes[i], low(q[i]));
            store(parts[2 * pair + 1].codes[i], high(q[i]));
        }
    }
}

// Of LANES rows of q6_K, the scales of the halves of a unit's blocks: bytes of lanes, four halves in each.
struct HalfScales {
    Ints scales[4];
    Vec d;
};

INLINE Vec scale_of(const HalfScales &unit, int half) { return times(converted(extended_byte(unit.scales[half / 4], half % 4)), unit.d); }

INLINE HalfScales half_scales(const char *const *rows, long start) {
    HalfScales unit;
    quads(rows, start + 192, unit.scales);
    unit.d = halves(rows, start + 208);
    return unit;
}

INLINE void unpack_half_scales(const char *const *rows, long start, Part *parts) {
    const HalfScales unit = half_scales(rows, start);
    EACH(n, 16) store_floats(n % 2 ? parts[n / 2].extra : parts[n / 2].scale, scale_of(unit, n));
}

// 16 codes of each of four blocks that share their bytes: the first or the second, by groups of four.
INLINE void load_piece(const char *const *rows, long start, long half, int piece, Ints (*codes)[4]) {
    const Ints upper = bytes(48);
    Ints a[4], b[4], h[4];
    quads(rows, start + 64 * half + 16 * piece, a);
    quads(rows, start + 64 * half + 32 + 16 * piece, b);
    quads(rows, start + 128 + 32 * half + 16 * piece, h);
    for (int i = 0; i < 4; i++) {
        codes[0][i] = low(a[i]) | (shifted_left(h[i], 4) & upper);
        codes[1][i] = low(b[i]) | (shifted_left(h[i], 2) & upper);
        codes[2][i] = high(a[i]) | (h[i] & upper);
        codes[3][i] = high(b[i]) | (shifted_right(h[i], 2) & upper);
    }
}

INLINE void unpack_q6_k(const char *const *rows, long block, Part *parts) {
    const long start = block / 8 * 210;
    unpack_half_scales(rows, start, parts);
    for (int n = 0; n < 4; n++) {
        const long half = n / 2, piece = n % 2;
        Ints codes[4][4];
        load_piece(rows, start, half, piece, codes);
        for (int i = 0; i < 4; i++)
            for (int b = 0; b < 4; b++)
                store(parts[4 * half + b].codes[4 * piece + i], codes[b][i]);
    }
}

template <Format F, void (*UNPACK)(const char *const *, long, Part *)>
TARGET static void unpack_blocks(const char *const *rows, long block, long count, Part *parts, Fetch &fetch) {
    for (long i = 0; i < count; i += LAYOUTS[F].blocks) {
        fetch.step(LAYOUTS[F].blocks);
        UNPACK(rows, block + i, parts + i);
    }
}

TARGET static void unpack(Format format, const char *const *rows, long block, long count, Part *parts, Fetch &fetch) {
    auto go = unpack_blocks<Q6_K, unpack_q6_k>;
    switch (format) {
    case Q4_0: go = unpack_blocks<Q4_0, unpack_q4_0>; break;
    case Q4_0_X8: go = unpack_blocks<Q4_0_X8, unpack_q4_0_x8>; break;
    case Q8_0: go = unpack_blocks<Q8_0, unpack_q8_0>; break;
    case Q4_K: go = unpack_blocks<Q4_K, unpack_q4_k>; break;
    case Q4_K_X8: go = unpack_blocks<Q4_K_X8, unpack_q4_k_x8>; break;
    default: break;
    }
    go(rows, block, count, parts, fetch);
}

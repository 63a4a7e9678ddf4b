// Products of weights and a few tiles of columns: weights go from memory through registers, and are stored nowhere.

template <int C, Scales S, void (*UNPACK)(const char *const *, long, Part *)>
TARGET static void multiply_unpacking(const char *const *rows, long each, long blocks, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    Vec s[C][PANELS];
    EACH(c, C) EACH(p, PANELS) s[c][p] = floats(0);
    for (long n = 0; n < blocks; n++) {
        const Entry *e = entries + n * C;
        EACH(p, PANELS) {
            fetch.step();
            Part part; // which the compiler keeps in registers
            UNPACK(rows + p * each, n, &part);
            Ints products[C][1];
            sum_products<S, C, 1, 0, 8>(&part, 0, e, products);
            const Vec scale = load_floats(part.scale);
            EACH(c, C) s[c][p] = plus_product(s[c][p], times(converted(products[c][0]), scale), floats(e[c].scale));
        }
    }
    EACH(c, C) EACH(p, PANELS) store_floats(sums[c] + p * LANES, s[c][p]);
}

using Multiply = void(const char *const *, long, long, const Entry *, float (*)[ROWS], Fetch &);

// A group of rows, `each` pointers for a panel, times all columns.
template <int C = 1>
INLINE void multiply_tile(const Weights &w, const char *const *rows, long each, long columns, const Entry *entries, float (*sums)[ROWS], Fetch &fetch) {
    if constexpr (C < MOST)
        if (columns > C)
            return multiply_tile<C + 1>(w, rows, each, columns, entries, sums, fetch);
    Multiply *go;
    switch (w.format) {
#ifdef BY_ROWS
    case Q8_0: go = multiply_rows<C, Q8_0>; break;
    case Q4_0: go = multiply_rows<C, Q4_0>; break;
    case Q4_K: go = multiply_q4_k<C>; break;
    case Q6_K: go = multiply_q6_k<C>; break;
    case Q4_K_X8: go = multiply_q4_k_x8<C>; break;
#else
    case Q8_0: go = multiply_unpacking<C, EIGHT_BITS, unpack_q8_0>; break;
    case Q4_0: go = C == 1 && w.blocks % 4 == 0 ? multiply_q4_0 : multiply_unpacking<C, ONE, unpack_q4_0>; break;
    case Q4_K: go = C == 1 ? multiply_q4_k_alone : multiply_q4_k<C, Q4_K>; break;
    case Q4_K_X8: go = multiply_q4_k<C, Q4_K_X8>; break;
    case Q6_K: go = C == 1 ? multiply_q6_k_alone : multiply_q6_k<C>; break;
#endif
#if defined(BY_ROWS) && !defined(VNNI)
    default: go = multiply_q4_0_x8<C>;
#else
    default: go = multiply_unpacking<C, ONE, unpack_q4_0_x8>;
#endif
    }
    go(rows, each, w.blocks, entries, sums, fetch);
}

// Sums of the lanes of vectors, for functions with the attributes TARGET: to be included in a namespace, after Vec and Ints.

// Sums of lanes of a that are HALF apart, and of b, in turns of HALF.
template <int HALF> TARGET INLINED Vec folded(Vec a, Vec b) {
    Ints low, high;
#pragma GCC unroll 16
    for (int i = 0; i < FLOATS; i++) {
        const int start = i / (2 * HALF) * 2 * HALF, within = i % (2 * HALF);
        low[i] = start + within % HALF + (within < HALF ? 0 : FLOATS);
        high[i] = low[i] + HALF;
    }
    return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

// Lane i of the result is the sum of the lanes of x[i * STEP].
template <int N, int STEP = 1> TARGET INLINED Vec lane_totals(const Vec *x) {
    if constexpr (N == 1)
        return x[0];
    else
        return folded<FLOATS / N>(lane_totals<N / 2, 2 * STEP>(x), lane_totals<N / 2, 2 * STEP>(x + STEP));
}

// Vectors of FLOATS numbers, for functions with the attributes TARGET: to be included in a namespace.

typedef float Vec __attribute__((vector_size(4 * FLOATS)));
typedef int32_t Ints __attribute__((vector_size(4 * FLOATS)));
typedef float Loose __attribute__((vector_size(4 * FLOATS), aligned(4), may_alias));

TARGET INLINED Vec &at(float *x) { return *(Vec *)x; }
TARGET INLINED const Vec &at(const float *x) { return *(const Vec *)x; }
TARGET static inline Vec all(float x) { return x - Vec{}; } // x + 0 would be an addition, for the sake of -0

// e^x for x up to 0, within 2 units of the last place; 0 below -87. NaN stays NaN.
TARGET static inline Vec exponential(Vec x) {
    const Vec held = x < all(-87.0f) ? all(-87.0f) : x;
    const Vec magic = all(12582912.0f); // its last bits are those of a whole number that is added
    const Vec shifted = held * 1.44269504f + magic;
    const Vec n = shifted - magic;
    const Vec r = held - n * 0.693359375f + n * 2.12194440e-4f; // n times log 2, in two parts
    Vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    y = (Vec)((Ints)y + ((Ints)shifted << 23));
    return x < all(-87.0f) ? Vec{} : y;
}

// Sums of lanes of a that are HALF apart, and of b, in turns of HALF.
template <int HALF> TARGET INLINED Vec folded(Vec a, Vec b) {
    Ints low, high;
    EACH(i, FLOATS) {
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

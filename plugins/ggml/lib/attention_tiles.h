// Attention for one instruction set, NAME: tiles of 128 queries by 96 keys, of which the first cache holds half.
//
// A lane of a vector is a query. So maxima, exponentials and sums need no lanes of their neighbours, and keys and
// values are read as they lie. ROWS x VECTORS vectors of FLOATS numbers, the sums of a product, stay in registers.

namespace NAME {

typedef float Vec __attribute__((vector_size(4 * FLOATS)));
typedef int Ints __attribute__((vector_size(4 * FLOATS)));

constexpr int QUERIES = 128, KEYS = 96, COLUMNS = VECTORS * FLOATS;

struct Scratch {
    alignas(64) float query[MOST][QUERIES];  // times the scale, by feature
    alignas(64) float weight[KEYS][QUERIES]; // at first the scores
    alignas(64) float sum[MOST][QUERIES];    // of weighted values, by feature
    alignas(64) float highest[QUERIES];      // score
    alignas(64) float total[QUERIES];        // weight
};

TARGET static inline Vec all(float x) { return x - Vec{}; } // x + 0 would be an addition, for the sake of -0
TARGET static inline Vec &at(float *x) { return *(Vec *)x; }
TARGET static inline const Vec &at(const float *x) { return *(const Vec *)x; }

// e^x for x up to 0, within 2 units of the last place; about 1e-38 below -87. NaN stays NaN.
TARGET static inline Vec exponential(Vec x) {
    x = x < all(-87.0f) ? all(-87.0f) : x;
    const Vec magic = all(12582912.0f); // its last bits are those of a whole number that is added
    const Vec shifted = x * 1.44269504f + magic;
    const Vec n = shifted - magic;
    const Vec r = x - n * 0.693359375f + n * 2.12194440e-4f; // n times log 2, in two parts
    Vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return (Vec)((Ints)y + ((Ints)shifted << 23));
}

// R rows of sums, COLUMNS wide: a times b, where a[i * row + k * step] is the element (i, k) of a.
template <int R>
TARGET static inline void block(float *sums, const float *a, long row, long step, const float *b, long n, bool add) {
    Vec s[R][VECTORS];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < VECTORS; j++)
            s[i][j] = add ? at(sums + i * QUERIES + j * FLOATS) : Vec{};
    for (long k = 0; k < n; k++) {
        Vec c[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            c[j] = at(b + k * QUERIES + j * FLOATS);
            asm("" : "+" REGISTER(c[j])); // else GCC reads it again for each row
        }
        for (int i = 0; i < R; i++) {
            const Vec x = all(a[i * row + k * step]);
            for (int j = 0; j < VECTORS; j++)
                s[i][j] += x * c[j];
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < VECTORS; j++)
            at(sums + i * QUERIES + j * FLOATS) = s[i][j];
}

TARGET static void product(float *sums, long rows, const float *a, long row, long step, const float *b, long n, bool add) {
    for (int column = 0; column < QUERIES; column += COLUMNS, sums += COLUMNS, b += COLUMNS) {
        long i = 0;
        for (; i + ROWS <= rows; i += ROWS)
            block<ROWS>(sums + i * QUERIES, a + i * row, row, step, b, n, add);
        for (; i + 2 <= rows; i += 2)
            block<2>(sums + i * QUERIES, a + i * row, row, step, b, n, add);
        if (i < rows)
            block<1>(sums + i * QUERIES, a + i * row, row, step, b, n, add);
    }
}

// Make weights of scores. If a score is the highest until now, earlier sums shrink.
TARGET static void weigh(Scratch &s, long keys, long features) {
    for (int j = 0; j < QUERIES; j += FLOATS) {
        Vec highest = at(s.highest + j), total = Vec{};
        for (long k = 0; k < keys; k++) {
            const Vec x = at(s.weight[k] + j);
            highest = x > highest ? x : highest;
        }
        for (long k = 0; k < keys; k++)
            total += at(s.weight[k] + j) = exponential(at(s.weight[k] + j) - highest);
        const Vec shrunk = exponential(at(s.highest + j) - highest);
        at(s.total + j) = at(s.total + j) * shrunk + total;
        at(s.highest + j) = highest;
        for (long i = 0; i < features; i++)
            at(s.sum[i] + j) *= shrunk;
    }
}

TARGET static void tile(Scratch &s, const Head &h, long first) {
    const long many = h.queries - first < QUERIES ? h.queries - first : QUERIES;
    for (long t = 0; t < QUERIES; t++) {
        for (long i = 0; i < h.d; i++)
            s.query[i][t] = t < many ? h.scale * h.query[(first + t) * h.query_row + i] : 0;
        for (long i = 0; i < h.dv; i++)
            s.sum[i][t] = 0;
        s.highest[t] = -__builtin_inff();
        s.total[t] = 0;
    }
    for (long low = 0; low < h.keys; low += KEYS) {
        const long keys = h.keys - low < KEYS ? h.keys - low : KEYS;
        product(s.weight[0], keys, h.key + low * h.key_row, h.key_row, 1, s.query[0], h.d, false);
        weigh(s, keys, h.dv);
        product(s.sum[0], h.dv, h.value + low * h.value_row, 1, h.value_row, s.weight[0], keys, true);
    }
    for (long t = 0; t < many; t++)
        for (long i = 0; i < h.dv; i++)
            h.result[(first + t) * h.result_row + i] = s.sum[i][t] / s.total[t];
}

TARGET static void attend(const Call &call, int thread, int threads) {
    Scratch s;
    const long tiles = (call.queries() + QUERIES - 1) / QUERIES, count = call.heads() * tiles;
    for (long n = count * thread / threads; n < count * (thread + 1) / threads; n++)
        tile(s, call.head(n / tiles), n % tiles * QUERIES);
}

} // namespace

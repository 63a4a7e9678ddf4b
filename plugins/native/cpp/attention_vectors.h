// Vectors of an instruction set, NAME, and rows of numbers that are read into them.

constexpr long TILE = 64; // cells of a tile
constexpr int TOGETHER = 4; // rows of scores
template <int R> constexpr unsigned ALL = (1u << R) - 1; // a bit for each of R rows

#include "vectors.h"

TARGET static inline Vec larger_of(Vec a, Vec b) { return a > b ? a : b; }

TARGET static inline Vec hyperbolic_tangent(Vec x) {
    const Vec e = exponential((Vec)((Ints)(x * 2.0f) | (int32_t)0x80000000)); // of -2|x|
    const Vec y = (1.0f - e) / (1.0f + e);
    return (Vec)((Ints)y | ((Ints)x & (int32_t)0x80000000));
}

// The scale of a block of quantized numbers.
TARGET static inline float half(const char *block) {
#if defined(__x86_64__)
    return _cvtsh_ss(*(const uint16_t *)block);
#else
    return of_half(*(const uint16_t *)block);
#endif
}

// A row of numbers of SIZE bytes in memory: `read` takes the n-th vector, and `codes` a vector without its scale. BLOCK is the
// size of 32 numbers that have a scale, which comes first; 0 if there are no scales.
struct RowF32 {
    static constexpr int BLOCK = 0, SIZE = 4;
    TARGET static inline Vec read(const char *row, long n) { return ((const Loose *)row)[n]; }
};

struct RowF16 {
    static constexpr int BLOCK = 0, SIZE = 2;
    TARGET static inline Vec read(const char *row, long n) { return (Vec)HALF_FLOATS(row + 2 * FLOATS * n); }
};

struct RowBF16 {
    static constexpr int BLOCK = 0, SIZE = 2;
    TARGET static inline Vec read(const char *row, long n) {
        return (Vec)(HALVES(row + 2 * FLOATS * n) << 16);
    }
};

struct RowQ8_0 { // blocks of 32: a scale in f16, and whole numbers
    static constexpr int BLOCK = 34;
    TARGET static inline Vec codes(const char *row, long n) {
        const char *block = row + n * FLOATS / 32 * BLOCK;
        return __builtin_convertvector(BYTES(block + 2 + n * FLOATS % 32), Vec);
    }
    TARGET static inline Vec read(const char *row, long n) { return codes(row, n) * half(row + n * FLOATS / 32 * BLOCK); }
};

struct RowQ4_0 { // blocks of 32: a scale in f16, and 16 bytes with the halves of the block in their halves
    static constexpr int BLOCK = 18;
    TARGET static inline Vec codes(const char *row, long n) {
        const char *block = row + n * FLOATS / 32 * BLOCK;
        const long within = n * FLOATS % 32;
        const Ints bytes = BYTES(block + 2 + within % 16), code = ((within < 16 ? bytes : bytes >> 4) & 15) - 8;
        return __builtin_convertvector(code, Vec);
    }
    TARGET static inline Vec read(const char *row, long n) { return codes(row, n) * half(row + n * FLOATS / 32 * BLOCK); }
};

// Calls a function with a row of a type.
template <class Use> static void by_type(int type, const Use &use) {
    switch (type) {
    case F16: return use(RowF16());
    case BF16: return use(RowBF16());
    case Q8_0: return use(RowQ8_0());
    case Q4_0: return use(RowQ4_0());
    default: return use(RowF32());
    }
}

// Where the rows of the cells of a tile lie, and where those lie that are fetched meanwhile.
struct Rows {
    const char *first;
    const long *offsets;
    const char *next;
    const long *ahead;
    size_t size; // of what is fetched of each row; 0 if nothing is
    const char *at(long cell) const { return first + offsets[cell]; }
    void fetch(long cell) const {
        for (size_t i = 0; i < size; i += 64)
            __builtin_prefetch(next + ahead[cell] + i, 0, 2);
    }
    // What lies `offset` bytes from the start of each row: the scales of a block, numbers in f16.
    void read_scales(size_t offset, uint16_t *scales) const {
        for (long c = 0; c < TILE; c++)
            memcpy(scales + c, at(c) + offset, 2);
    }
};

static inline size_t row_size(int type, long n) {
    switch (type) {
    case F32: return 4 * n;
    case Q8_0: return n / 32 * 34;
    case Q4_0: return n / 32 * 18;
    default: return 2 * n;
    }
}

template <class Row> TARGET static void unpack_row(const char *row, long n, float *to) {
    long i = 0;
    for (; (i + 1) * FLOATS <= n; i++)
        at(to + i * FLOATS) = Row::read(row, i);
    if constexpr (!Row::BLOCK) // blocks fill whole vectors
        if (i * FLOATS < n) {
            char rest[4 * FLOATS] = {};
            memcpy(rest, row + i * FLOATS * Row::SIZE, (n - i * FLOATS) * Row::SIZE);
            at(to + i * FLOATS) = Row::read(rest, 0);
        }
}

// A row as f32, with zeros up to a whole vector.
static inline void unpack(int type, const char *row, long n, float *to) {
    by_type(type, [&](auto kind) { unpack_row<decltype(kind)>(row, n, to); });
}

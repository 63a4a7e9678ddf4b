// Products of quantized weights and columns: what the code for all instruction sets has in common.
#pragma once

#include "instructions.h"

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>

constexpr long BLOCK = 32; // weights with one scale, or with one for each half
constexpr long CHUNK = 16; // blocks of a row that are unpacked at a time: with 32 rows, half of the first cache
constexpr long FEW = 4;    // the same for a single tile of columns, which waits for memory
constexpr long ALONE = 1024; // numbers of a column that each thread encodes for itself
constexpr long BATCH = 128; // columns whose sums are kept at a time
constexpr long NEAR = 768 << 10; // bytes of columns that stay in the second cache

// A block of a column: codes, their scale, and the terms for weights whose codes are not centred.
struct Entry {
    int8_t codes[BLOCK];
    float scale;
    int32_t bias[2]; // minus the centre of the weights' codes, times the sum of the codes; of each half, for HALVES
    float minus;     // minus the sum of the column's numbers
};
static_assert(sizeof(Entry) == 48, "");

// How the weights lie: as in a file, or as ggml repacks them, eight rows interleaved by 8 bytes.
enum Format { Q4_0, Q4_0_X8, Q8_0, Q4_K, Q4_K_X8, Q6_K, FORMATS };

constexpr int TILES = 64; // is added to a format where AMX may be used

// The scales of a block: one; one and a minimum that is subtracted; one for each half; one, of codes with signs.
enum Scales { ONE, MINIMUM, HALVES, SIGNED };

static inline uint16_t half_at(const char *place) {
    uint16_t half;
    memcpy(&half, place, sizeof half);
    return half;
}

struct Layout {
    Scales scales;
    int centre;    // of the codes
    int rows;      // that are interleaved
    int blocks;    // of 32 weights in a unit of the format
    int size;      // bytes of a unit
    int tiles;     // of columns, most, for which blocks go through registers, for each tile anew
};
constexpr Layout LAYOUTS[FORMATS] = {
    {ONE, 8, 1, 1, 18, 1},      {ONE, 8, 8, 1, 144, 2},      {ONE, 128, 1, 1, 34, 1},
    {MINIMUM, 0, 1, 8, 144, 1}, {MINIMUM, 0, 8, 8, 1152, 1}, {HALVES, 32, 1, 8, 210, 1},
};

struct Weights {
    const char *data;
    long rows, blocks, stride; // bytes from a row, or from interleaved rows, to the next
    Format format;
};

// A column's entries, of which one follows the other by a step.
struct Codes {
    Entry *entries;
    long step;

    Entry *block(long n) const { return entries + n * step; }
};

// Entries by tile, block and column. All tiles have the same number of columns, or one more.
struct Columns {
    Entry *entries;
    long count, blocks, most; // columns in a tile

    long tiles() const { return (count + most - 1) / most; }
    long first(long tile) const { return count * tile / tiles(); }
    Entry *block(long tile, long block) const { return entries + first(tile) * blocks + block * (first(tile + 1) - first(tile)); }
    Codes column(long n) const {
        const long tile = ((n + 1) * tiles() - 1) / count;
        return {block(tile, 0) + n - first(tile), first(tile + 1) - first(tile)};
    }
};

// The most columns of a tile: `wide`, for AMX, from so many columns on.
struct Tiling {
    long most, wide, from;

    long of(long columns) const { return columns >= from ? wide : most; }
};

struct Result {
    float *data;
    long stride; // floats from a column to the next
    const int32_t *places = nullptr; // of columns; null: they are in order, and of one matrix

    float *column(long n) const { return data + (places ? places[n] : n) * stride; }
};

// Pairs of a token and one of its experts, in the order of tokens and in that of experts.
struct Pairs {
    long count, experts;
    int32_t *starts;  // of each expert's pairs in the order of experts, and the end of the last one's
    int32_t *ordered; // in the order of experts, the pairs
    int32_t *expert, *place; // of each pair, its expert, and its place in that order

    Pairs(void *data, long size, long count)
        : count(count), experts(size - 1 - 3 * count), starts((int32_t *)data), ordered(starts + experts + 1),
          expert(ordered + count), place(expert + count) {}
};

// Products of matrices that follow each other, each with columns of its own.
struct Products {
    Weights weights; // the first matrix
    Entry *entries;
    Tiling tiling;
    Result result;
    long matrices, size;   // bytes from a matrix to the next
    const int32_t *starts; // the first column of each matrix, and the end of the last one's

    Weights matrix(long n) const {
        Weights w = weights;
        w.data += n * size;
        return w;
    }
    Columns columns(long n) const {
        const long count = starts[n + 1] - starts[n];
        return {entries + starts[n] * weights.blocks, count, weights.blocks, tiling.of(count)};
    }
    Codes codes(const Pairs &pairs, long pair) const {
        const long expert = pairs.expert[pair];
        return columns(expert).column(pairs.place[pair] - starts[expert]);
    }
    Result results(long n) const {
        Result y = result;
        y.places = y.places ? y.places + starts[n] : nullptr;
        return y;
    }
};

// A product's turns, of a few rows each, are taken in shares. Each thread takes the next share when it has ended one, so that a thread
// which is slow, or begins late, takes fewer.
struct Shares {
    int32_t *taken, *ended; // counts of shares and of threads, which all threads share; 0 before a product, and after it
    long threads;
    long own; // the first share of this thread; ANY: the next one, as threads come one by one

    static constexpr long ANY = -1;

    long first() const { return own == ANY ? next() : own; }
    long next() const { return (own == ANY ? 0 : threads) + __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED); }

    // To be called by each thread, after its last turn. Where any may come, nobody knows who is the last.
    void end() const {
        if (own != ANY && __atomic_add_fetch(ended, 1, __ATOMIC_ACQ_REL) == threads)
            *taken = *ended = 0;
    }
};

// Consecutive turns, by number: half of what each thread would get of those that no share before has. Threads that read far from
// each other get up to a third more from memory than threads that read every other turn.
struct Share {
    long turns, threads; // all of them
    long number = -1, first = 0, end = 0;

    // Goes to a share that is not before this one; past the last turn if there is none.
    void seek(long share) {
        for (; number < share; number++) {
            const long half = (turns - end) / (2 * threads);
            first = end, end += half > 1 ? half : 1;
        }
    }
};

// Bytes that somebody will read soon.
struct Ahead {
    const char *start;
    long count;
};

// The weights of the next product; without data if it is not known.
struct Following {
    const char *data;
    long rows, size; // of a row, in bytes

    static constexpr long MOST = 48; // rows that are fetched before the product begins

    Ahead rows_from(long first) const {
        const long left = rows - first;
        return {data + first * size, data && left > 0 ? (left < MOST ? left : MOST) * size : 0};
    }
};

// Whether lines that are read once are fetched past the caches. On Zen 5 it costs 5 % more when they leave a core's own
// caches; on Zen 4 only half as many lines, or less, come at a time past them.
static const bool PAST_CACHES = is_zen5();

// Columns of numbers, of which so many stand in each of several matrices.
struct Source {
    const char *data;
    long count, step, far; // bytes from a column to the next, and from a matrix to the next

    const float *column(long n) const { return (const float *)(data + n / count * far + n % count * step); }
};

// Memory that is fetched line by line while something else is computed.
struct Fetch {
    const char *line;
    double next, each; // bytes from the start: fetched up to here, and in a step

    const char *start = line;

    Fetch(Ahead ahead, long steps) : line(ahead.start), next(0), each((double)ahead.count / steps) {}

    void step(int times = 1) {
        next += each * times;
        const char *const end = start + (long)next;
        for (; line < end; line += 64)
            PAST_CACHES ? __builtin_prefetch(line, 0, 0) : __builtin_prefetch(line, 0, 2); // or to the second cache
    }
};

// Fetches a quarter of the unit after the next one to the first cache. The scales of a unit of q6_K lie at its end, and are read
// first, which the processor does not foresee.
static inline void fetch_near(const char *unit, int quarter) {
    constexpr long SIZE = LAYOUTS[Q6_K].size;
    __builtin_prefetch(unit + 2 * SIZE + quarter * (SIZE / 4), 0, 3);
}

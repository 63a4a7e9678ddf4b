// Products by groups of rows, in the turns of a thread, by the operations of one instruction set.

#include "products_columns.h"
#include "products_unpacking.h"
#include "products_tiles.h"
#if defined(VNNI) && !defined(BY_ROWS)
#define WITH_TILES
#include "products_amx.h"
#endif
// Columns, most, for which the blocks of a format go through registers, for each tile anew.
#ifdef BY_ROWS
#include "products_rows.h"
#include "products_interleaved.h"
#ifdef VNNI
constexpr long direct_columns(Format format) { return format == Q4_0_X8 ? 2 * MOST : MOST - 1; }
#else
constexpr long direct_columns(Format format) { return MOST * (format == Q8_0 ? 2 : LAYOUTS[format].tiles); }
#endif
#else
#include "products_units.h"
constexpr long direct_columns(Format format) { return MOST * LAYOUTS[format].tiles; }
#endif
#include "products_few.h"

// The starts of a group of rows; those past the last row repeat it.
TARGET static long find_rows(const Weights &w, long group, const char **rows) {
    const long interleaved = LAYOUTS[w.format].rows, count = ROWS / interleaved, last = w.rows / interleaved - 1;
    for (long i = 0; i < count; i++) {
        const long row = group * count + i;
        rows[i] = w.data + (row < last ? row : last) * w.stride;
    }
    return count;
}

// The products of some tiles of columns, and of weights that are unpacked once for all of them.
TARGET static void multiply_tiles(Scratch &s, const Weights &w, const char *const *rows, long each, const Columns &x, long low_tile, long high_tile, Fetch &fetch) {
    const Layout &layout = LAYOUTS[w.format];
    const long chunk = high_tile - low_tile > 1 ? CHUNK : layout.blocks > FEW ? layout.blocks : FEW, first = x.first(low_tile);
    memset(s.sums, 0, (x.first(high_tile) - first) * sizeof s.sums[0]);
    for (long block = 0; block < w.blocks; block += chunk) {
        const long blocks = w.blocks - block < chunk ? w.blocks - block : chunk;
        for (long panel = 0; panel < PANELS; panel++)
            unpack(w.format, rows + each * panel, block, blocks, s.parts[panel], fetch);
        auto add = w.format == Q8_0 ? add_columns<EIGHT_BITS> : layout.scales == ONE ? add_columns<ONE>
                   : layout.scales == MINIMUM ? add_columns<MINIMUM> : add_columns<HALVES>;
#ifdef WITH_TILES
        if (x.most == tiles::MOST)
            add = layout.scales == ONE ? tiles::add_columns<ONE> : layout.scales == MINIMUM ? tiles::add_columns<MINIMUM> : tiles::add_columns<HALVES>;
#endif
        for (long tile = low_tile; tile < high_tile; tile++) {
            const long column = x.first(tile), wide = x.first(tile + 1) - column;
            add(wide, s.parts, blocks, x.block(tile, block), s.sums + (column - first), fetch);
        }
    }
}

// The bytes of a group of rows.
TARGET static Ahead bytes_of(const Weights &w, long group) {
    const long each = ROWS / LAYOUTS[w.format].rows, left = w.rows / LAYOUTS[w.format].rows - group * each;
    return {w.data + group * each * w.stride, left <= 0 ? 0 : (left < each ? left : each) * w.stride};
}

// A group of rows times the columns of some tiles. Meanwhile, other bytes are fetched.
TARGET static void multiply_group(Scratch &s, const Weights &w, const Columns &x, const Result &y, long group, Ahead ahead, long low_tile, long high_tile) {
    const char *rows[ROWS];
    const long count = find_rows(w, group, rows), first = x.first(low_tile), columns = x.first(high_tile) - first, tiles = high_tile - low_tile;
    if (x.most == MOST && columns <= direct_columns(w.format)) {
        Fetch fetch(ahead, w.blocks * PANELS * tiles);
        for (long tile = low_tile; tile < high_tile; tile++) {
            const long column = x.first(tile), wide = x.first(tile + 1) - column;
            multiply_tile(w, rows, count / PANELS, wide, x.block(tile, 0), s.sums + (column - first), fetch);
        }
    } else {
        Fetch fetch(ahead, w.blocks * (PANELS + tiles));
        multiply_tiles(s, w, rows, count / PANELS, x, low_tile, high_tile, fetch);
    }
    const long row = group * ROWS, left = w.rows - row;
    for (long c = 0; c < columns; c++)
        memcpy(y.column(first + c) + row, s.sums[c], (left < ROWS ? left : ROWS) * sizeof(float));
}

// A turn of products, a group of rows by some tiles of columns: its number, its matrix, with the columns and results, and the turns of
// this matrix.
struct Turn {
    const Products *all;
    long number = 0, matrix = -1, first = 0, end = 0;
    Weights w = {};
    Columns x = {};
    Result y = {};
    long groups = 0, tiles = 0, batch = 1; // of rows and of columns; tiles that are multiplied together

    // Whether there is such a turn; it comes after those that were sought before.
    bool seek(long turn) {
        for (number = turn; turn >= end && ++matrix < all->matrices;)
            if (all->starts[matrix] < all->starts[matrix + 1])
                begin_matrix();
        return turn < end;
    }

    void begin_matrix() {
        w = all->matrix(matrix), x = all->columns(matrix), y = all->results(matrix);
        const long near = NEAR / (long)(x.most * x.blocks * sizeof(Entry)), most = BATCH / x.most;
        groups = (w.rows + ROWS - 1) / ROWS, tiles = x.tiles(), batch = near < 4 ? 4 : near < most ? near : most;
        first = end, end += groups * ((tiles + batch - 1) / batch);
    }

    long group() const { return (number - first) % groups; }
    long low_tile() const { return (number - first) / groups * batch; }
    long high_tile() const { return low_tile() + batch < tiles ? low_tile() + batch : tiles; }
};

// What one thread does of products. Its last turn fetches what it will most likely begin the next ones with: the same share.
TARGET static void multiply(const Products &products, const Shares &shares, const Following &following) {
    Scratch s;
    Turn turn = {&products}, next = turn;
    next.seek(LONG_MAX);
    Share share = {next.end, shares.threads}, later = {(following.rows + ROWS - 1) / ROWS, shares.threads};
    const long begun = shares.first();
    share.seek(begun), later.seek(begun);
    long number = share.first;
    for (bool more = turn.seek(number); more; turn = next) {
        next = turn;
        if (++number == share.end) {
            share.seek(shares.next());
            number = share.first;
        }
        more = next.seek(number);
        const Ahead ahead = more ? bytes_of(next.w, next.group()) : following.rows_from(later.first * ROWS);
        multiply_group(s, turn.w, turn.x, turn.y, turn.group(), ahead, turn.low_tile(), turn.high_tile());
    }
#ifdef WITH_TILES
    if (products.tiling.wide > MOST)
        tiles::release();
#endif
    shares.end();
}

#undef TARGET
#undef INLINE
#undef WIDE
#undef WITH_TILES

// The table of the cells that queries see.
//
// A mask is read once for all layers. Attention then reads no cell that no query sees, and no mask where it is 0.
#pragma once

#include "attention_call.h"

#include <valarray>

typedef std::valarray<uint64_t> Cells; // as bits

static long common(const Cells &a, const Cells &b) {
    long sum = 0;
    for (size_t i = 0; i < a.size(); i++)
        sum += __builtin_popcountll(a[i] & b[i]);
    return sum;
}

// Append cells to a list.
static int32_t *list(const Cells &cells, int32_t *to) {
    for (size_t i = 0; i < cells.size(); i++)
        for (uint64_t word = cells[i]; word; word &= word - 1)
            *to++ = (int32_t)(i * 64 + __builtin_ctzll(word));
    return to;
}

// The cells of a row of the mask that are seen, and those where it is 0.
template <class Bits> static void read_row(const Bits *row, long cells, Bits hidden, Cells &seen, Cells &plain) {
    for (long low = 0; low < cells; low += 64) {
        uint64_t open = 0, zero = 0;
        for (long i = 0; i < smaller(64, cells - low); i++) {
            open |= (uint64_t)(row[low + i] != hidden) << i;
            zero |= (uint64_t)((Bits)(row[low + i] << 1) == 0) << i; // 0 and -0
        }
        seen[low / 64] |= open;
        plain[low / 64] &= zero;
    }
}

struct Table {
    const ggml_tensor *table, *mask;
    const long queries, tile;
    Cells seen, plain, before, joined, shared; // of a query, of the query before, of a span
    long line = 0, first = 0, count = 0, splits = 0, plane = 0;

    Table(const ggml_tensor *table, const ggml_tensor *mask, long queries, long tile)
        : table(table), mask(mask), queries(queries), tile(tile), seen(quotient(cells(), 64)), plain(seen), before(seen), joined(seen),
          shared(seen) {}

    long cells() const { return mask->ne[0]; }
    int32_t *start(long n) { return (int32_t *)((char *)table->data + n * table->nb[1] + plane * table->nb[2]); }

    void read(long query) {
        seen = 0;
        plain = ~0ull;
        for (long head = 0; head < mask->ne[2]; head++) {
            const char *row = (const char *)mask->data + query * mask->nb[1] + head * mask->nb[2] + plane * mask->nb[3];
            if (mask->type == F16)
                read_row<uint16_t>((const uint16_t *)row, cells(), 0xfc00, seen, plain);
            else
                read_row<uint32_t>((const uint32_t *)row, cells(), 0xff800000, seen, plain);
        }
        plain &= seen;
    }

    bool alike() const { return 2 * common(seen, before) >= smaller(common(seen, seen), common(before, before)); }

    void end_span() {
        if (!count)
            return;
        int32_t *to = start(line++), *begin = to + HEADER;
        int32_t *middle = list(shared, begin), *end = list(joined & ~shared, middle);
        to[0] = (int32_t)first, to[1] = (int32_t)count, to[2] = (int32_t)(middle - begin), to[3] = (int32_t)(end - begin);
        count = 0;
    }

    void make_plane() {
        line = splits = 0;
        for (long query = 0; query < queries; query++) {
            read(query);
            if (count == tile)
                end_span();
            if (count && splits < SPLITS && !alike())
                end_span(), splits++;
            if (!count) {
                first = query;
                joined = seen;
                shared = plain;
            }
            joined |= seen;
            shared &= plain;
            before = seen;
            count++;
        }
        end_span();
        for (; line < table->ne[1]; line++)
            start(line)[1] = 0;
    }

    void make() {
        for (plane = 0; plane < table->ne[2]; plane++)
            make_plane();
    }
};

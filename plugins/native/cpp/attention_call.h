// The operands of an op of attention, and how its work is divided among threads.
#pragma once

#include "tensor.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

enum Blocks { Q4_0 = 2, Q8_0 = 8 }; // types of ggml, as in tensor.h

constexpr long HEADER = 4; // numbers before the cells of a row of the table
constexpr long LANES = 128; // rows of scores in a tile, most
constexpr long SPLITS = 16; // spans that end before a tile is full, most, where the next query sees other cells
constexpr long FEW = 12; // rows of scores; with more, a lane of a vector is a row

static inline long smaller(long a, long b) { return a < b ? a : b; }
static inline long larger(long a, long b) { return a > b ? a : b; }
static inline long quotient(long a, long b) { return (a + b - 1) / b; }

// Queries of a full tile, where so many heads share keys.
static inline long tile_of(long group) { return larger(16, LANES / smaller(group, 8) / 16 * 16); }

// Consecutive queries, and the cells that at least one of them sees. All of them see the first `plain` cells, with a
// mask of 0. Without a table, the cells are the whole history.
struct Span {
    long first, count, plain, total;
    const int32_t *cells;

    long cell(long n) const { return cells ? cells[n] : n; }
};

// query (d, heads, queries, batch), key (d, key heads, history, batch), value (dv, key heads, history, batch), and the
// mask (history, rows, 1 or heads, 1 or batch) with its table (header and history, spans, 1 or batch).
struct Call {
    const ggml_tensor *result, *query, *key, *value, *mask, *table, *sinks;
    float scale, softcap;
    long parts; // of a span's cells, most; with more than one, the result holds sums that are to be added

    long d() const { return query->ne[0]; }
    long dv() const { return value->ne[0]; }
    long heads() const { return query->ne[1]; }
    long queries() const { return query->ne[2]; }
    long batches() const { return query->ne[3]; }
    long shared() const { return key->ne[1]; }
    long group() const { return heads() / shared(); }
    long history() const { return key->ne[2]; }
    long part() const { return quotient(quotient(history(), parts), 64) * 64; } // cells

    long lines() const { return table ? table->ne[1] : quotient(queries(), tile()); }
    long tile() const { return tile_of(group()); }

    // Line n of the table; without queries if the line is not used.
    Span span(long batch, long n) const {
        if (!table)
            return {n * tile(), smaller(tile(), queries() - n * tile()), history(), history(), nullptr};
        const long plane = table->ne[2] == 1 ? 0 : batch;
        const int32_t *line = (const int32_t *)((const char *)table->data + n * table->nb[1] + plane * table->nb[2]);
        return {line[0], line[1], line[2], line[3], line + HEADER};
    }

    static const char *row(const ggml_tensor *x, long head, long place, long batch) {
        return (const char *)x->data + head * x->nb[1] + place * x->nb[2] + batch * x->nb[3];
    }

    float hidden(long cell, long query, long head, long batch) const {
        const char *at = (const char *)mask->data + query * mask->nb[1] + (mask->ne[2] == 1 ? 0 : head * mask->nb[2]) +
                         (mask->ne[3] == 1 ? 0 : batch * mask->nb[3]);
        return mask->type == F16 ? of_half(((const uint16_t *)at)[cell]) : ((const float *)at)[cell];
    }

    // Adds the mask to a score. A hidden NaN is no score.
    void hide(float &score, long cell, long query, long head, long batch) const {
        const float added = hidden(cell, query, head, batch);
        score = added == -INFINITY ? added : score + added;
    }

    // Whether all numbers of a value are finite: 0 times NaN is NaN.
    bool finite(const float *value) const {
        float zero = 0;
        for (long i = 0; i < dv(); i++)
            zero += 0 * value[i];
        return zero == 0;
    }

    // The weighted values of a head and query, or those of a part behind their highest score and total weight.
    float *target(long head, long query, long batch, long part) const {
        const long n = head + heads() * (query + queries() * batch);
        return (float *)result->data + (parts == 1 ? n * dv() : (n * parts + part) * (dv() + 2));
    }

    float factor() const { return softcap != 0 ? scale / softcap : scale; } // of queries

    // Weighted values, `step` floats apart, of scores up to `highest`, and the total of the weights.
    void put(float *to, const float *sums, long step, float highest, float total, long head) const {
        float factor = 1;
        if (parts > 1) {
            *to++ = highest;
            *to++ = total;
        } else
            factor = share(highest, total, head);
        for (long i = 0; i < dv(); i++)
            to[i] = factor == 0 ? 0 : factor * sums[i * step];
    }

    // The factor that makes weighted averages of weighted sums: 0 for a row that sees nothing.
    float share(float highest, float total, long head) const {
        if (!sinks)
            return total == 0 ? 0 : 1 / total;
        const float sink = ((const float *)sinks->data)[head], base = sink > highest ? sink : highest;
        if (base == -INFINITY)
            return 0;
        const float shrunk = expf(highest - base);
        return shrunk / (total * shrunk + expf(sink - base));
    }
};

// The cells [low, high) of a span, in the order of its list, for some heads that share keys.
struct Work {
    Span span;
    long batch, part, low, high;

    long cells() const { return high - low; }
};

// A thread's share of the work: units of all spans, parts and heads in order, weighed by their cells and rows.
template <class Run> static void divide(const Call &call, long thread, long threads, const Run &run) {
    const auto each = [&](auto visit) {
        for (long batch = 0; batch < call.batches(); batch++)
            for (long n = 0; n < call.lines(); n++) {
                const Span span = call.span(batch, n);
                const long step = call.parts == 1 ? span.total : call.part();
                for (long part = 0; span.count && part < larger(1, quotient(span.total, larger(step, 1))); part++)
                    visit(Work{span, batch, part, part * step, smaller(span.total, (part + 1) * step)});
            }
    };
    const auto weight = [&](const Work &work) { return (work.cells() + 16) * larger(work.span.count * call.group(), 4); };
    long total = 0, place = 0;
    each([&](const Work &work) { total += weight(work) * call.shared(); });
    const long begin = total * thread / threads, end = total * (thread + 1) / threads;
    each([&](const Work &work) {
        const long one = weight(work), last = place + one * call.shared();
        const long low = place < begin ? quotient(begin - place, one) : 0;
        const long high = last > end ? quotient(end - place, one) : call.shared();
        if (low < smaller(high, call.shared()) && place < end)
            run(work, low, smaller(high, call.shared()));
        place = last;
    });
}

// Memory of a thread, which it keeps for later calls: blocks, each as large as all before it.
class Memory {
    struct Blocks {
        static constexpr int MOST = 32;
        char *start[MOST] = {};
        size_t size[MOST] = {};

        ~Blocks() {
            for (char *block : start)
                free(block);
        }
    };

    static Blocks &blocks() {
        static thread_local Blocks found;
        return found;
    }

    int block = 0;
    size_t used = 0;

  public:
    float *floats(long n) {
        const size_t size = quotient(4 * n, 64) * 64 + 64; // neighbours are a line apart
        Blocks &have = blocks();
        while (have.start[block] && used + size > have.size[block])
            block++, used = 0;
        if (!have.start[block]) {
            have.size[block] = larger(size, 1L << (18 + block));
            have.start[block] = (char *)aligned_alloc(64, quotient(have.size[block], 64) * 64);
        }
        float *found = (float *)(have.start[block] + used);
        used += size;
        return found;
    }
};

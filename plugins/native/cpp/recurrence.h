// Recurrences for one instruction set, NAME. A lane of a vector is a number of a row.

#include <cmath>

namespace NAME {

#include "vectors.h"

// e^x of any x: the root has the same digits on both sides of 0.
TARGET INLINED Vec power(Vec x) {
    const Vec less = exponential((Vec)((Ints)(x * 0.5f) | INT32_MIN)), root = x > Vec{} ? 1.0f / less : less;
    return root * root;
}

// The n-th vector of so many numbers: the lanes behind them are 0.
TARGET INLINED Vec part_of(const float *x, long n, long count) {
    if ((n + 1) * FLOATS <= count)
        return ((const Loose *)x)[n];
    Vec made = {};
    for (long i = n * FLOATS; i < count; i++)
        made[i % FLOATS] = x[i];
    return made;
}

// The same of numbers for each element, or of one for all.
TARGET INLINED Vec each_or_all(const float *x, long n, long numbers, long count) {
    return numbers == 1 && count != 1 ? all(*x) : part_of(x, n, count);
}

// The decays of a token: e to the power of numbers for each element, or of one for all, times a factor.
TARGET INLINED void decay(const float *x, long numbers, long count, float factor, float *kept) {
    const Vec first = power(each_or_all(x, 0, numbers, count) * factor);
    for (long n = 0; n * FLOATS < count; n++)
        at(kept + n * FLOATS) = n && numbers > 1 ? power(part_of(x, n, count) * factor) : first;
}

TARGET static void prepare(const DeltaRule &rule, long sequence, long head, long t, Prepared &to, long slot) {
    const long place = rule.place(sequence, t, head, rule.heads), width = rule.width;
    const float *share = rule.share + place * rule.shares;
    to.factor[slot] = rule.removed ? 1 : *share;
    decay(rule.decay + place * rule.decays, rule.decays, width, 1, to.kept[slot]);
    for (long n = 0; n * FLOATS < width; n++) {
        const Vec key = part_of(rule.k + place * width, n, width);
        const Vec read = rule.removed ? part_of(rule.removed + place * width, n, width) : key * at(to.kept[slot] + n * FLOATS);
        at(to.key[slot] + n * FLOATS) = key;
        at(to.read[slot] + n * FLOATS) = read;
        at(to.put[slot] + n * FLOATS) = (rule.removed ? read : key) * each_or_all(share, n, rule.shares, width);
        at(to.asked[slot] + n * FLOATS) = part_of(rule.q + place * width, n, width);
    }
}

TARGET static void prepare(const SelectiveScan &scan, long sequence, long head, long t, Prepared &to, long slot) {
    const long width = scan.width, group = head / (scan.heads / scan.groups);
    const long shared = scan.place(sequence, t, group, scan.groups) * width;
    const float given = scan.dt[scan.place(sequence, t, head, scan.heads)], step = given > 20 ? given : log1pf(expf(given));
    to.factor[slot] = step;
    decay(scan.A + head * scan.decays, scan.decays, width, step, to.kept[slot]);
    for (long n = 0; n * FLOATS < width; n++) {
        at(to.key[slot] + n * FLOATS) = part_of(scan.B + shared, n, width);
        at(to.asked[slot] + n * FLOATS) = part_of(scan.C + shared, n, width);
    }
}

// The n-th vector of a token: of those in registers, if the width is known.
template <long WIDTH> TARGET INLINED Vec nth(const Vec *held, const float *x, long n) {
    return WIDTH ? held[n] : at(x + n * FLOATS);
}

// Some rows, of WIDTH numbers if that is not 0, go through some tokens, whose `added` and `y` are `stride` apart.
template <long WIDTH, bool REMOVES>
TARGET static void advance(float (*__restrict rows)[MOST], long width, long count, const Prepared &by, long tokens, const float *added, float *y, long stride) {
    const long vectors = (WIDTH ? WIDTH : width) / FLOATS, rest = WIDTH ? 0 : width % FLOATS;
    alignas(64) float known[ROWS];
    Vec sums[ROWS];
    for (long t = 0; t < tokens; t++) {
        if (REMOVES) {
            for (long r = 0; r < ROWS; r++) {
                sums[r] = Vec{};
                for (long n = 0; r < count && n < vectors + (rest > 0); n++)
                    sums[r] += at(rows[r] + n * FLOATS) * at(by.read[t] + n * FLOATS);
            }
            for (long r = 0; r < ROWS; r += FLOATS)
                at(known + r) = lane_totals<FLOATS>(sums + r);
        }
        constexpr long HELD = WIDTH ? WIDTH / FLOATS : 1;
        Vec kept[HELD], key[HELD], put[HELD], asked[HELD];
        for (long n = 0; WIDTH && n < HELD; n++) {
            kept[n] = at(by.kept[t] + n * FLOATS), key[n] = at(by.key[t] + n * FLOATS), asked[n] = at(by.asked[t] + n * FLOATS);
            if (REMOVES)
                put[n] = at(by.put[t] + n * FLOATS);
        }
        for (long r = 0; r < ROWS; r++) {
            const float value = r < count ? added[t * stride + r] * by.factor[t] : 0;
            sums[r] = Vec{};
            for (long n = 0; r < count && n < vectors + (rest > 0); n++) {
                const long i = n * FLOATS;
                Vec row = at(rows[r] + i) * nth<WIDTH>(kept, by.kept[t], n) + nth<WIDTH>(key, by.key[t], n) * value;
                if (REMOVES)
                    row -= nth<WIDTH>(put, by.put[t], n) * known[r];
                for (long lane = rest; n == vectors && lane < FLOATS; lane++)
                    row[lane] = 0; // infinity times 0 is NaN
                at(rows[r] + i) = row;
                sums[r] += row * nth<WIDTH>(asked, by.asked[t], n);
            }
        }
        alignas(64) float made[ROWS];
        for (long r = 0; r < ROWS; r += FLOATS)
            at(made + r) = lane_totals<FLOATS>(sums + r);
        memcpy(y + t * stride, made, count * sizeof(float));
    }
}

// A head of a sequence. Between two blocks of tokens, its rows lie in `after`.
template <class Call> TARGET static void compute_head(const Call &call, long sequence, long head) {
    const long width = call.width, vectors = (width + FLOATS - 1) / FLOATS, stride = call.heads * call.rows;
    constexpr bool REMOVES = Call::REMOVES;
    const auto go = width == 64 ? advance<64, REMOVES> : width == 128 ? advance<128, REMOVES> : advance<0, REMOVES>;
    float *const after = call.after + (sequence * call.heads + head) * call.rows * width;
    const float *before = call.state(sequence, head);
    Prepared by;
    for (long first = 0; first < call.tokens; first += TOKENS, before = after) {
        const long tokens = first + TOKENS < call.tokens ? TOKENS : call.tokens - first;
        for (long t = 0; t < tokens; t++)
            prepare(call, sequence, head, first + t, by, t);
        for (long row = 0; row < call.rows; row += ROWS) {
            const long count = row + ROWS < call.rows ? ROWS : call.rows - row, place = call.place(sequence, first, head, call.heads) * call.rows + row;
            alignas(64) float rows[ROWS][MOST];
            for (long r = 0; r < count; r++)
                for (long n = 0; n < vectors; n++)
                    at(rows[r] + n * FLOATS) = part_of(before + (row + r) * width, n, width);
            go(rows, width, count, by, tokens, call.added + place, call.y + place, stride);
            for (long r = 0; r < count; r++)
                memcpy(after + (row + r) * width, rows[r], width * sizeof(float));
        }
    }
}

template <class Call> static void compute(const Call &call, int part, int parts) {
    const long heads = call.heads * call.sequences;
    for (long n = heads * part / parts; n < heads * (part + 1) / parts; n++)
        compute_head(call, n / call.heads, n % call.heads);
}

} // namespace NAME

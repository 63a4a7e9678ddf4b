// Recurrences over the tokens of a sequence: what their operands mean, head by head.
//
// Each row of a head's state, `width` numbers, meets the same vectors of a token:
//
//     known = sum of row * read                          only in the delta rule, which removes it
//     row = row * kept + key * added - put * known       `added` is a number for each row
//     y = sum of row * asked
//
// The selective scan has a row for each element of a head; in the delta rule, a row holds what the keys tell of a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

constexpr long MOST = 256; // numbers in a row
constexpr long TOKENS = 8; // whose vectors are prepared at a time
constexpr long ROWS = 16;  // that go through these tokens together

// The vectors of some tokens, each filled up with zeros.
struct Prepared {
    alignas(64) float read[TOKENS][MOST], kept[TOKENS][MOST], key[TOKENS][MOST], put[TOKENS][MOST], asked[TOKENS][MOST];
    float factor[TOKENS]; // of `added`
};

struct Recurrence {
    float *y, *after;    // outputs of the tokens, and states behind them
    const float *states; // before them
    const float *added;  // (rows, heads, tokens, sequences), as y
    long width, rows, heads, tokens, sequences;

    // Token t of a head of a sequence, in operands that have so many heads.
    long place(long sequence, long t, long head, long of_heads) const { return (sequence * tokens + t) * of_heads + head; }
};

// Of the op of this name. Without `removed`, it is the gated rule. The decay and the share have one number for a head, or one
// for each key.
struct DeltaRule : Recurrence {
    static constexpr bool REMOVES = true;
    const float *q, *k, *decay, *share, *removed;
    long decays, shares;

    const float *state(long sequence, long head) const { return states + (sequence * heads + head) * rows * width; }
};

// Of the op of this name. The decays have one number for a head, or one for each number of a row; `ids` may be null.
struct SelectiveScan : Recurrence {
    static constexpr bool REMOVES = false;
    const float *dt, *A, *B, *C;
    const int32_t *ids;
    long decays, groups;

    const float *state(long sequence, long head) const {
        return states + ((ids ? ids[sequence] : sequence) * heads + head) * rows * width;
    }
};

// A part of the heads of all sequences.
void compute(const DeltaRule &rule, int part, int parts);
void compute(const SelectiveScan &scan, int part, int parts);

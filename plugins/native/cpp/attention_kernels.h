// Attention for one instruction set, in the namespace NAME, by macros that are undefined at the end.

namespace NAME {

#include "attention_vectors.h"
#ifdef CODES
#include "attention_codes.h"
#endif
#include "attention_few.h"
#include "attention_many.h"

static void attend(const Call &call, long thread, long threads) {
    divide(call, thread, threads, [&](const Work &work, long low, long high) {
        (work.span.count * call.group() <= FEW ? attend_few : attend_many)(call, work, low, high);
    });
}

// Sums of the parts of a span's cells.
TARGET static void add_rows(const float *parts, long count, long dv, float *sums, float &highest, float &total) {
    highest = -__builtin_inff(), total = 0;
    for (long n = 0; n < count; n++)
        highest = parts[n * (dv + 2)] > highest ? parts[n * (dv + 2)] : highest;
    for (long i = 0; i < dv; i++)
        sums[i] = 0;
    for (long n = 0; n < count; n++) {
        const float *part = parts + n * (dv + 2);
        const float shrunk = part[0] == -__builtin_inff() ? 0 : exponential(all(part[0] - highest))[0];
        total += shrunk * part[1];
        for (long i = 0; i < dv; i++)
            sums[i] += shrunk * part[2 + i];
    }
}

// Call is that of the result: its query and value are the result itself.
static void add_parts(const Call &call, const ggml_tensor *parts, long history, long thread, long threads) {
    const long most = parts->ne[1], step = quotient(quotient(history, most), 64) * 64, dv = call.dv();
    const long rows = call.heads() * call.queries() * call.batches();
    const long begin = rows * thread / threads, end = rows * (thread + 1) / threads;
    Memory memory;
    float *sums = memory.floats(dv), highest, total;
    for (long batch = 0; batch < call.batches(); batch++)
        for (long n = 0; n < (call.table ? call.table->ne[1] : 1); n++) {
            const Span span = call.table ? call.span(batch, n) : Span{0, call.queries(), history, history, nullptr};
            const long from = (batch * call.queries() + span.first) * call.heads();
            for (long row = larger(begin, from); row < smaller(end, from + span.count * call.heads()); row++) {
                const float *first = (const float *)parts->data + row * most * (dv + 2);
                add_rows(first, larger(1, quotient(span.total, step)), dv, sums, highest, total);
                call.put((float *)call.result->data + row * dv, sums, 1, highest, total, row % call.heads());
            }
        }
}

} // namespace NAME

#undef NAME
#undef TARGET
#undef REGISTER
#undef FLOATS
#undef REGISTERS
#undef BYTES
#undef HALVES
#undef HALF_FLOATS
#undef CODES

// x * sigmoid(x), times another factor if there is one: the gates of feed-forward layers, in one pass over memory.

#include "instructions.h"

#include <cstdint>

namespace {

constexpr long FLOATS = 16;

#define TARGET __attribute__((always_inline))
#include "vectors.h"

// The root of e^-|x| is never too small, so that results keep their digits down to the smallest numbers.
INLINED Vec silu(Vec x) {
    const Vec root = exponential((Vec)((Ints)x | INT32_MIN) * 0.5f), share = 1.0f + root * root;
    return (x < Vec{} ? x * root * root : x) / share;
}

INLINED void gate(const float *x, const float *up, float *y, long first, long end) {
    for (long i = first; i < end; i += FLOATS) {
        const long count = end - i < FLOATS ? end - i : FLOATS;
        Vec in = {}, factor = {};
        if (count == FLOATS) {
            const Vec made = silu(*(const Loose *)(x + i));
            *(Loose *)(y + i) = up ? made * *(const Loose *)(up + i) : made;
            continue;
        }
        for (long n = 0; n < count; n++) {
            in[n] = x[i + n];
            factor[n] = up ? up[i + n] : 1;
        }
        const Vec made = silu(in) * factor;
        for (long n = 0; n < count; n++)
            y[i + n] = made[n];
    }
}

#if defined(__x86_64__)
AVX512_TARGET void gate_avx512(const float *x, const float *up, float *y, long first, long end) {
    gate(x, up, y, first, end);
}

AVX2_TARGET void gate_avx2(const float *x, const float *up, float *y, long first, long end) {
    gate(x, up, y, first, end);
}

#endif

} // namespace

extern "C" const char *backbay_gates_instructions() {
#if defined(__x86_64__)
    return has_avx2() ? vector_instructions() : "SSE2";
#else
    return "the compiler's target";
#endif
}

// Numbers [first, end); without `up`, the other factor is 1.
extern "C" void backbay_gates(const float *x, const float *up, float *y, long first, long end) {
#if defined(__x86_64__)
    if (has_avx2())
        return (has_avx512() ? gate_avx512 : gate_avx2)(x, up, y, first, end);
#endif
    gate(x, up, y, first, end);
}

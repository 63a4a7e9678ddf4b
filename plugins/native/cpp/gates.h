// Gates by one instruction set, in the namespace NAME: vectors of FLOATS numbers, and functions with the attributes TARGET.

namespace NAME {

#include "vectors.h"

// The root of e^-|x| is never too small, so that results keep their digits down to the smallest numbers.
TARGET INLINED Vec silu(Vec x) {
    const Vec root = exponential((Vec)((Ints)x | INT32_MIN) * 0.5f), share = 1.0f + root * root;
    return (x < Vec{} ? x * root * root : x) / share;
}

TARGET static void gate(const float *x, const float *up, float *y, long first, long end) {
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

} // namespace NAME

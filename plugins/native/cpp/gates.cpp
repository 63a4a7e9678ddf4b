// x * sigmoid(x), times another factor if there is one: the gates of feed-forward layers, in one pass over memory.

#include "instructions.h"

#include <cstdint>

#if defined(__x86_64__)

#define NAME avx512
#define TARGET AVX512_TARGET
#define FLOATS 16
#include "gates.h"
#undef NAME
#undef TARGET
#undef FLOATS

#define NAME avx2
#define TARGET AVX2_TARGET
#define FLOATS 8
#include "gates.h"
#undef NAME
#undef TARGET
#undef FLOATS

#endif

#define NAME any
#define TARGET
#define FLOATS 4
#include "gates.h"

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
        return (has_avx512() ? avx512::gate : avx2::gate)(x, up, y, first, end);
#endif
    any::gate(x, up, y, first, end);
}

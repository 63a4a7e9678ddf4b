// Attention over a history, for custom ops of ggml: keys and values are read once for the heads that share them.
//
// backbay_visible_cells   the table of the cells that queries see, from a mask
// backbay_attention       attention; scores exist for a tile at a time
// backbay_attention_parts the same, with the cells of each span in parts, so that all threads have work
// backbay_attention_sum   the sum of the parts, in their order
//
// A part depends on the mask alone, never on the number of threads. So neither do results.

#include "attention_call.h"
#include "attention_cells.h"
#include "instructions.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define NAME avx512
#define TARGET AVX512_TARGET
#define REGISTER "v"
#define FLOATS 16
#define REGISTERS 32
#define BYTES(x) (Ints) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(x)))
#define HALVES(x) (Ints) _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(x)))
#define HALF_FLOATS(x) _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)(x)))
#define CODES // with code for keys and values in blocks of codes
#include "attention_kernels.h"

#define NAME avx2
#define TARGET AVX2_TARGET
#define REGISTER "x"
#define FLOATS 8
#define REGISTERS 16
#define BYTES(x) (Ints) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(x)))
#define HALVES(x) (Ints) _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(x)))
#define HALF_FLOATS(x) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x)))
#include "attention_kernels.h"

static void attend(const Call &call, int thread, int threads) {
    has_avx512() ? avx512::attend(call, thread, threads) : avx2::attend(call, thread, threads);
}

static void add_parts(const Call &call, const ggml_tensor *parts, long history, int thread, int threads) {
    (has_avx512() ? avx512::add_parts : avx2::add_parts)(call, parts, history, thread, threads);
}

#elif defined(__aarch64__)
#include <arm_neon.h>

// The lower half of a register; a load of all 8 bytes would pass the end of a cache.
static inline int8x8_t four_bytes(const char *x) {
    uint32_t bytes;
    memcpy(&bytes, x, sizeof bytes);
    return vcreate_s8(bytes);
}

#define NAME neon
#define TARGET
#define REGISTER "w"
#define FLOATS 4
#define REGISTERS 32
#define BYTES(x) (Ints) vmovl_s16(vget_low_s16(vmovl_s8(four_bytes(x))))
#define HALVES(x) (Ints) vmovl_s16(vld1_s16((const int16_t *)(x)))
#define HALF_FLOATS(x) vcvt_f32_f16(vreinterpret_f16_s16(vld1_s16((const int16_t *)(x))))
#include "attention_kernels.h"

using namespace neon;

#else

static void attend(const Call &, int, int) {}
static void add_parts(const Call &, const ggml_tensor *, long, int, int) {}

#endif

// The bits of userdata: the scale, and above it the softcap.
static Call call_of(ggml_tensor *result, void *userdata, long parts) {
    const uint64_t bits = (uint64_t)userdata;
    const uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32);
    ggml_tensor *const *src = result->src;
    const bool masked = src[4] && src[4]->type == I32;
    Call call = {result, src[0], src[1], src[2], masked ? src[3] : nullptr, masked ? src[4] : nullptr, src[masked ? 5 : 3], 0, 0, parts};
    memcpy(&call.scale, &low, 4);
    memcpy(&call.softcap, &high, 4);
    return call;
}

extern "C" const char *backbay_attention_instructions() { return vector_instructions(); }

// src: query, key, value; mask and table, if there is a mask; sinks, if there are any.
extern "C" void backbay_attention(ggml_tensor *result, int thread, int threads, void *userdata) {
    attend(call_of(result, userdata, 1), thread, threads);
}

// The result is (dv + 2, parts, heads, queries x batch).
extern "C" void backbay_attention_parts(ggml_tensor *result, int thread, int threads, void *userdata) {
    attend(call_of(result, userdata, result->ne[1]), thread, threads);
}

// src: parts; the table, if there is a mask; sinks, if there are any. userdata: the length of the history.
extern "C" void backbay_attention_sum(ggml_tensor *result, int thread, int threads, void *userdata) {
    ggml_tensor *const *src = result->src;
    const bool masked = src[1] && src[1]->type == I32;
    const Call call = {result, result, nullptr, result, nullptr, masked ? src[1] : nullptr, src[masked ? 2 : 1], 0, 0, 1};
    add_parts(call, src[0], (long)(intptr_t)userdata, thread, threads);
}

// src: the mask. The bits of userdata: the number of queries, and above it that of a tile.
extern "C" void backbay_visible_cells(ggml_tensor *result, int thread, int, void *userdata) {
    const uint64_t bits = (uint64_t)userdata;
    if (thread == 0)
        Table(result, result->src[0], (uint32_t)bits, bits >> 32).make();
}

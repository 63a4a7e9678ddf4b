// Attention without a mask over many keys in f32, for a custom op of ggml. Scores exist for a tile at a time.

#include "tensor.h"

#include <cstring>

static constexpr int MOST = 128; // features of a head

// What one head attends to. Rows, and the features in a row, are apart by whole numbers of floats.
struct Head {
    const float *query, *key, *value;
    float *result;
    long query_row, key_row, value_row, result_row;
    long d, dv, queries, keys;
    float scale;
};

// src: query (d, heads, queries, batch), key (d, key heads, keys, batch), value (dv, key heads, keys, batch).
struct Call {
    const ggml_tensor *result, *query, *key, *value;
    float scale;

    long queries() const { return query->ne[2]; }
    long heads() const { return query->ne[1] * query->ne[3]; }

    Head head(long n) const {
        const long head = n % query->ne[1], batch = n / query->ne[1], shared = head / (query->ne[1] / key->ne[1]);
        return {
            start(query, head, batch), start(key, shared, batch), start(value, shared, batch), start(result, head, batch),
            row(query), row(key), row(value), row(result),
            query->ne[0], value->ne[0], query->ne[2], key->ne[2], scale,
        };
    }

    static float *start(const ggml_tensor *x, long head, long batch) {
        return (float *)((char *)x->data + head * x->nb[1] + batch * x->nb[3]);
    }
    static long row(const ggml_tensor *x) { return x->nb[2] / sizeof(float); }
};

#if defined(__x86_64__)

#define NAME avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")))
#define REGISTER "v"
#define FLOATS 16
#define VECTORS 4
#define ROWS 6
#include "attention_tiles.h"
#undef NAME
#undef TARGET
#undef REGISTER
#undef FLOATS
#undef VECTORS

#define NAME avx2
#define TARGET __attribute__((target("avx2,fma")))
#define REGISTER "x"
#define FLOATS 8
#define VECTORS 2
#include "attention_tiles.h"

static bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

static const char *find() {
    if (has_avx512())
        return "AVX-512";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "AVX2" : nullptr;
}

static void attend(const Call &call, int thread, int threads) {
    has_avx512() ? avx512::attend(call, thread, threads) : avx2::attend(call, thread, threads);
}

#elif defined(__aarch64__)

#define NAME neon
#define TARGET
#define REGISTER "w"
#define FLOATS 4
#define VECTORS 4
#define ROWS 6
#include "attention_tiles.h"

static const char *find() { return "NEON"; }
static void attend(const Call &call, int thread, int threads) { neon::attend(call, thread, threads); }

#else

static const char *find() { return nullptr; }
static void attend(const Call &, int, int) {}

#endif

// The instruction set that this processor runs; null if it is none of those that are compiled.
extern "C" const char *backbay_attention_instructions() { return find(); }

// ggml_custom_op_t; the bits of userdata are those of the scale.
extern "C" void backbay_attention(ggml_tensor *result, int thread, int threads, void *userdata) {
    const uint32_t bits = (uint32_t)(uintptr_t)userdata;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    attend({result, result->src[0], result->src[1], result->src[2], scale}, thread, threads);
}

// Products of quantized weights and any number of columns, as two custom ops of ggml: columns in codes, and products.
// A short column that is alone takes one op: threads meet after each op, which takes longer than to encode it.

#include "instructions.h"
#include "products.h"
#include "tensor.h"

static constexpr int OWN_PARAMS = 8; // the first of a tensor's op_params that ggml's custom ops leave alone

// What a caller says of a product: the format of its weights, and whether AMX may be used for its columns.
struct Choice {
    Format format;
    bool tiles;

    explicit Choice(const void *userdata) : format((Format)((intptr_t)userdata % TILES)), tiles((intptr_t)userdata & TILES) {}
};

#if defined(__x86_64__)
#include <immintrin.h>

#include "products_avx2.h"

#define NAME avx512
#define FEATURES ""
#include "products_avx512.h"

#define NAME vnni
#define FEATURES VNNI_FEATURES
#define VNNI
#include "products_avx512.h"

static bool takes_tiles() { // what the processor has stays, and asking the system takes time
    static const bool has = has_tiles();
    return has;
}

static const char *find_tiles() { return takes_tiles() ? vnni::tiles::INSTRUCTIONS : nullptr; }
static const char *find() { return has_vnni() ? "AVX-512 with VNNI" : vector_instructions(); }

// Columns in codes. A tile has the most columns; of AMX where the caller allows it.
static Columns columns_of(const ggml_tensor *entries, long blocks, bool tiles) {
    const long count = entries->ne[1], most = has_avx512() ? avx512::MOST : avx2::MOST;
    return {(Entry *)entries->data, count, blocks, tiles && count >= vnni::tiles::FROM && takes_tiles() ? vnni::tiles::MOST : most};
}

static void encode(const ggml_tensor *x, Choice choice, const ggml_tensor *entries, int thread, int threads) {
    const Columns columns = columns_of(entries, x->ne[0] / BLOCK, choice.tiles);
    (has_vnni() ? vnni::encode_columns : has_avx512() ? avx512::encode_columns : avx2::encode_columns)((const float *)x->data, x->nb[1] / sizeof(float), choice.format, columns, thread, threads);
}

static void multiply(Choice choice, const ggml_tensor *entries, ggml_tensor *y, int thread, int threads) {
    const ggml_tensor *w = y->src[0], *next = y->src[2];
    const Weights weights = {(const char *)w->data, (long)w->ne[1], (long)w->ne[0] / BLOCK, (long)w->nb[1] * LAYOUTS[choice.format].rows, choice.format};
    const Columns columns = columns_of(entries, weights.blocks, choice.tiles);
    const Result result = {(float *)y->data, (long)(y->nb[1] / sizeof(float))};
    const Turns turns = {y->op_params + OWN_PARAMS, y->op_params + OWN_PARAMS + 1, threads, thread};
    const Following following = next ? Following{(const char *)next->data, (long)next->ne[1], (long)next->nb[1]} : Following{};
    (has_vnni() ? vnni::multiply : has_avx512() ? avx512::multiply : avx2::multiply)(weights, columns, result, turns, following);
}

#else

static const char *find_tiles() { return nullptr; }
static const char *find() { return nullptr; }
static void encode(const ggml_tensor *, Choice, const ggml_tensor *, int, int) {}
static void multiply(Choice, const ggml_tensor *, ggml_tensor *, int, int) {}

#endif

extern "C" const char *backbay_products_instructions() { return find(); }

// The same for tiles of many columns.
extern "C" const char *backbay_tiles_instructions() { return find_tiles(); }

// Whether there is code for a format of weights.
extern "C" int backbay_products_takes(int format) { return find() && 0 <= format && format < FORMATS; }

// ggml_custom_op_t; userdata is a Choice. Of an f32 matrix, its columns in codes.
extern "C" void backbay_columns(ggml_tensor *result, int thread, int threads, void *userdata) {
    encode(result->src[0], Choice(userdata), result, thread, threads);
}

// ggml_custom_op_t; userdata is a Choice. The product of weights and one column of at most ALONE numbers, which
// each thread encodes for itself.
extern "C" void backbay_product_alone(ggml_tensor *result, int thread, int threads, void *userdata) {
    Entry codes[ALONE / BLOCK];
    ggml_tensor entries = {};
    entries.data = codes, entries.ne[1] = 1;
    encode(result->src[1], Choice(userdata), &entries, 0, 1);
    multiply(Choice(userdata), &entries, result, thread, threads);
}

// ggml_custom_op_t; userdata is a Choice. The product of weights and columns in codes. src[2], if there is one,
// are the weights of the next product. `thread` is -1 where threads come one by one.
extern "C" void backbay_products(ggml_tensor *result, int thread, int threads, void *userdata) {
    multiply(Choice(userdata), result->src[1], result, thread, threads);
}

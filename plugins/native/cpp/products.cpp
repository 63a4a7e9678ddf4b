// Products of quantized weights and any number of columns, as two custom ops of ggml: columns in codes, and products.
// A short column that is alone takes one op: threads meet after each op, which takes longer than to encode it.
// Products by experts are three: the pairs of tokens and experts in order, columns in codes for them, and products.

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

#define NAME avx2
#define FEATURES ""
#include "products_avx2.h"

#define NAME avx_vnni
#define FEATURES AVX_VNNI_FEATURES
#define VNNI
#include "products_avx2.h"
#undef VNNI

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
static const char *find() {
    return has_vnni() ? "AVX-512 with VNNI" : has_avx_vnni() && !has_avx512() ? "AVX2 with VNNI" : vector_instructions();
}

// A function, compiled for this processor.
#define CHOSEN(name) (has_vnni() ? vnni::name : has_avx512() ? avx512::name : has_avx_vnni() ? avx_vnni::name : avx2::name)

static Tiling tiling(bool tiles) {
    const long most = CHOSEN(MOST);
    return tiles && takes_tiles() ? Tiling{most, vnni::tiles::MOST, vnni::tiles::FROM} : Tiling{most, most, 0};
}

static void encode(const ggml_tensor *x, Choice choice, const ggml_tensor *entries, int thread, int threads) {
    const Columns columns = {(Entry *)entries->data, (long)entries->ne[1], (long)x->ne[0] / BLOCK, tiling(choice.tiles).of(entries->ne[1])};
    CHOSEN(encode_columns)((const float *)x->data, x->nb[1] / sizeof(float), choice.format, columns, thread, threads);
}

static void encode_pairs(const ggml_tensor *x, const Pairs &pairs, Choice choice, const ggml_tensor *entries, int thread, int threads) {
    const Source source = {(const char *)x->data, (long)x->ne[1], (long)x->nb[1], (long)x->nb[2]};
    const long sharing = pairs.count / (x->ne[1] * x->ne[2]);
    Products products = {};
    products.weights.blocks = x->ne[0] / BLOCK;
    products.entries = (Entry *)entries->data, products.tiling = tiling(choice.tiles), products.starts = pairs.starts;
    CHOSEN(encode_pairs)(source, sharing, pairs, choice.format, products, thread, threads);
}

static void multiply(Choice choice, const ggml_tensor *entries, ggml_tensor *y, const Pairs *pairs, int thread, int threads) {
    const ggml_tensor *w = y->src[0], *next = pairs ? nullptr : y->src[2];
    const int32_t whole[2] = {0, (int32_t)entries->ne[1]};
    const Products products = {
        {(const char *)w->data, (long)w->ne[1], (long)w->ne[0] / BLOCK, (long)w->nb[1] * LAYOUTS[choice.format].rows, choice.format},
        (Entry *)entries->data,
        tiling(choice.tiles),
        {(float *)y->data, (long)(y->nb[1] / sizeof(float)), pairs ? pairs->ordered : nullptr},
        pairs ? pairs->experts : 1,
        (long)w->nb[2],
        pairs ? pairs->starts : whole,
    };
    const Shares shares = {y->op_params + OWN_PARAMS, y->op_params + OWN_PARAMS + 1, threads, thread};
    const Following following = next ? Following{(const char *)next->data, (long)next->ne[1], (long)next->nb[1]} : Following{};
    CHOSEN(multiply)(products, shares, following);
}

#else

static const char *find_tiles() { return nullptr; }
static const char *find() { return nullptr; }
static void encode(const ggml_tensor *, Choice, const ggml_tensor *, int, int) {}
static void encode_pairs(const ggml_tensor *, const Pairs &, Choice, const ggml_tensor *, int, int) {}
static void multiply(Choice, const ggml_tensor *, ggml_tensor *, const Pairs *, int, int) {}

#endif

extern "C" const char *backbay_products_instructions() { return find(); }
extern "C" const char *backbay_experts_instructions() { return find(); }

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
    multiply(Choice(userdata), &entries, result, nullptr, thread, threads);
}

// ggml_custom_op_t; userdata is a Choice. The product of weights and columns in codes. src[2], if there is one, are the weights of the next
// product. `thread` is -1 where threads come one by one, about as many as `threads`, to a result that no product was made of before.
extern "C" void backbay_products(ggml_tensor *result, int thread, int threads, void *userdata) {
    multiply(Choice(userdata), result->src[1], result, nullptr, thread, threads);
}

// The pairs of a table, for so many columns in codes.
static Pairs pairs_of(const ggml_tensor *table, const ggml_tensor *entries) {
    return {table->data, (long)table->ne[0], (long)entries->ne[1]};
}

// ggml_custom_op_t, of which the first thread makes all. The table of the pairs of tokens and experts, of the experts' ids, (used, tokens); userdata is
// the number of experts. An id outside of them, which core refuses, must not reach other memory.
extern "C" void backbay_pairs(ggml_tensor *result, int thread, int, void *userdata) {
    if (thread > 0)
        return;
    const ggml_tensor *ids = result->src[0];
    const long used = ids->ne[0], last = (long)(intptr_t)userdata - 1;
    const Pairs pairs(result->data, result->ne[0], used * ids->ne[1]);
    memset(pairs.starts, 0, (pairs.experts + 1) * sizeof *pairs.starts);
    for (long n = 0; n < pairs.count; n++) {
        const int32_t id = *(const int32_t *)((const char *)ids->data + n % used * ids->nb[0] + n / used * ids->nb[1]);
        pairs.starts[pairs.expert[n] = 0 <= id && id <= last ? id : last]++;
    }
    int32_t start = 0;
    for (long n = 0; n <= pairs.experts; n++) {
        const int32_t count = pairs.starts[n];
        pairs.starts[n] = start, start += count;
    }
    for (long n = 0; n < pairs.count; n++)
        pairs.ordered[pairs.place[n] = pairs.starts[pairs.expert[n]]++] = (int32_t)n;
    for (long n = pairs.experts; n > 0; n--) // each start has come to the next one
        pairs.starts[n] = pairs.starts[n - 1];
    pairs.starts[0] = 0;
}

// ggml_custom_op_t; userdata is a Choice. The columns of pairs in codes, by expert: of f32 columns, (inner, 1 or used, tokens), and
// the table of pairs.
extern "C" void backbay_expert_columns(ggml_tensor *result, int thread, int threads, void *userdata) {
    encode_pairs(result->src[0], pairs_of(result->src[1], result), Choice(userdata), result, thread, threads);
}

// ggml_custom_op_t; userdata is a Choice. The products of experts' weights, columns in codes by expert, and the table of pairs.
extern "C" void backbay_expert_products(ggml_tensor *result, int thread, int threads, void *userdata) {
    const Pairs pairs = pairs_of(result->src[2], result->src[1]);
    multiply(Choice(userdata), result->src[1], result, &pairs, thread, threads);
}

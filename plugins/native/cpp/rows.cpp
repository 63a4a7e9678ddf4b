// Copies of rows, for custom ops of ggml. ggml's own code joins tensors element by element, and gives whole rows to threads,
// so that a single thread copies a wide row.

#include "tensor.h"

#include <cstring>

static constexpr long LINE = 16; // floats

static char *start(const ggml_tensor *x, const long *place) {
    return (char *)x->data + place[1] * x->nb[1] + place[2] * x->nb[2] + place[3] * x->nb[3];
}

// A thread's part of so many items: [first, end).
struct Part {
    long first, end;
    Part(long count, long grain, int thread, int threads) {
        const long share = ((count + threads - 1) / threads + grain - 1) / grain * grain;
        first = share * thread < count ? share * thread : count;
        end = first + share < count ? first + share : count;
    }
};

static long id(const ggml_tensor *ids, long n) {
    const char *at = (const char *)ids->data + n * ids->nb[0];
    return ids->type == I64 ? (long)*(const int64_t *)at : (long)*(const int32_t *)at;
}

// The instruction set; the same code serves all processors.
extern "C" const char *backbay_rows_instructions() { return "all"; }

// Two tensors side by side along a dimension. userdata: the dimension, plus 4 times the bytes of an element.
extern "C" void backbay_join(ggml_tensor *result, int thread, int threads, void *userdata) {
    const long dim = (long)(intptr_t)userdata % 4, bytes = (long)(intptr_t)userdata / 4;
    const ggml_tensor *first = result->src[0], *second = result->src[1];
    const Part part(result->ne[1] * result->ne[2] * result->ne[3], 1, thread, threads);
    for (long n = part.first; n < part.end; n++) {
        long place[4] = {0, n % result->ne[1], n / result->ne[1] % result->ne[2], n / result->ne[1] / result->ne[2]};
        char *row = start(result, place);
        if (dim == 0) {
            memcpy(row, start(first, place), first->ne[0] * bytes);
            memcpy(row + first->ne[0] * bytes, start(second, place), second->ne[0] * bytes);
        } else if (place[dim] < first->ne[dim]) {
            memcpy(row, start(first, place), first->ne[0] * bytes);
        } else {
            place[dim] -= first->ne[dim];
            memcpy(row, start(second, place), second->ne[0] * bytes);
        }
    }
}

// Rows of an f32 matrix, src[0], by the ids in src[1]; each thread copies some columns of all of them.
extern "C" void backbay_pick(ggml_tensor *result, int thread, int threads, void *) {
    const ggml_tensor *table = result->src[0], *ids = result->src[1];
    const Part part(table->ne[0], LINE, thread, threads);
    for (long n = 0; n < ids->ne[0]; n++)
        memcpy((float *)((char *)result->data + n * result->nb[1]) + part.first,
               (const float *)((const char *)table->data + id(ids, n) * table->nb[1]) + part.first,
               (part.end - part.first) * sizeof(float));
}

// Writes the rows in src[1] over those of an f32 matrix, src[0] and the result, by the ids in src[2].
extern "C" void backbay_put(ggml_tensor *result, int thread, int threads, void *) {
    const ggml_tensor *rows = result->src[1], *ids = result->src[2];
    const Part part(rows->ne[0], LINE, thread, threads);
    for (long n = 0; n < ids->ne[0]; n++)
        memcpy((float *)((char *)result->data + id(ids, n) * result->nb[1]) + part.first,
               (const float *)((const char *)rows->data + n * rows->nb[1]) + part.first,
               (part.end - part.first) * sizeof(float));
}

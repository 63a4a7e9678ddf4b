// The delta rule and the selective scan, for custom ops of ggml. ggml's own kernels take heads of few sizes.

#include "instructions.h"
#include "recurrence_call.h"
#include "tensor.h"

#if defined(__x86_64__)

#define NAME avx512
#define TARGET AVX512_TARGET
#define FLOATS 16
#include "recurrence.h"
#undef NAME
#undef TARGET
#undef FLOATS

#define NAME avx2
#define TARGET AVX2_TARGET
#define FLOATS 8
#include "recurrence.h"

static const char *find() { return vector_instructions(); }

template <class Call> static void compute_part(const Call &call, int part, int parts) {
    has_avx512() ? avx512::compute(call, part, parts) : avx2::compute(call, part, parts);
}

#else

static const char *find() { return nullptr; }
template <class Call> static void compute_part(const Call &, int, int) {}

#endif

void compute(const DeltaRule &rule, int part, int parts) { compute_part(rule, part, parts); }
void compute(const SelectiveScan &scan, int part, int parts) { compute_part(scan, part, parts); }

extern "C" const char *backbay_recurrence_instructions() { return find(); }

static const float *floats(const ggml_tensor *x) { return x ? (const float *)x->data : nullptr; }

// Both write the outputs, then the states behind them. All operands are contiguous, and hold a token at least.
static Recurrence between(const ggml_tensor *result, const ggml_tensor *states, const ggml_tensor *added) {
    const int64_t *n = added->ne;
    float *const y = (float *)result->data;
    return {y, y + n[0] * n[1] * n[2] * n[3], floats(states), floats(added), (long)states->ne[0], (long)n[0], (long)n[1], (long)n[2], (long)n[3]};
}

// ggml_custom_op_t. src: s, q, k, v, decay, share; removed, if there is one.
extern "C" void backbay_delta_rule(ggml_tensor *result, int thread, int threads, void *) {
    ggml_tensor *const *src = result->src;
    const DeltaRule rule = {between(result, src[0], src[3]), floats(src[1]), floats(src[2]), floats(src[4]), floats(src[5]),
                            floats(src[6]), (long)src[4]->ne[0], (long)src[5]->ne[0]};
    compute(rule, thread, threads);
}

// ggml_custom_op_t. src: s, x, dt, A, B, C, ids.
extern "C" void backbay_selective_scan(ggml_tensor *result, int thread, int threads, void *) {
    ggml_tensor *const *src = result->src;
    const SelectiveScan scan = {between(result, src[0], src[1]), floats(src[2]), floats(src[3]), floats(src[4]), floats(src[5]),
                                (const int32_t *)src[6]->data, (long)src[3]->ne[0], (long)src[4]->ne[1]};
    compute(scan, thread, threads);
}

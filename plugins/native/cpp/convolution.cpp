// The causal convolution of each channel over the steps, for a custom op of ggml. The channels of a step adjoin; ggml's own
// code wants the steps of a channel to adjoin, and multiplies number by number.

#include "instructions.h"
#include "tensor.h"

static constexpr long BLOCK = 256; // channels
static constexpr long MOST = 32;   // taps
static constexpr long LANES = 16;

typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4)));

// src: window (taps - 1 + steps, channels, sequences), kernels (taps, channels). Result: (channels, steps, sequences).
struct Convolution {
    const ggml_tensor *result, *window, *kernels;

    long channels() const { return result->ne[0]; }
    long steps() const { return result->ne[1]; }
    long taps() const { return kernels->ne[0]; }

    const float *seen(long step, long sequence) const {
        return (const float *)((const char *)window->data + step * window->nb[0] + sequence * window->nb[2]);
    }
    float *made(long step, long sequence) const {
        return (float *)((char *)result->data + step * result->nb[1] + sequence * result->nb[2]);
    }
};

// Channels from `first` on, at most a block of them. The kernels are turned once for all steps.
INLINED void convolve_block(const Convolution &call, long first, long count) {
    const long taps = call.taps(), row = call.window->nb[0] / sizeof(float), whole = count / LANES * LANES;
    const float *kernels = (const float *)call.kernels->data + first * taps;
    float turned[MOST][BLOCK];
    for (long c = 0; c < count; c++)
        for (long i = 0; i < taps; i++)
            turned[i][c] = kernels[c * taps + i];
    for (long sequence = 0; sequence < call.result->ne[2]; sequence++)
        for (long step = 0; step < call.steps(); step++) {
            const float *x = call.seen(step, sequence) + first;
            float *y = call.made(step, sequence) + first;
            for (long c = 0; c < whole; c += LANES) {
                Vector sum = *(const Vector *)(x + c) * *(const Vector *)(turned[0] + c);
                for (long i = 1; i < taps; i++)
                    sum += *(const Vector *)(x + i * row + c) * *(const Vector *)(turned[i] + c);
                *(Vector *)(y + c) = sum;
            }
            for (long c = whole; c < count; c++) {
                float sum = x[c] * turned[0][c];
                for (long i = 1; i < taps; i++)
                    sum += x[i * row + c] * turned[i][c];
                y[c] = sum;
            }
        }
}

#if defined(__x86_64__)
AVX512_TARGET static void on_avx512(const Convolution &call, long first, long count) { convolve_block(call, first, count); }
AVX2_TARGET static void on_avx2(const Convolution &call, long first, long count) { convolve_block(call, first, count); }

static void convolve(const Convolution &call, long first, long count) {
    has_avx512() ? on_avx512(call, first, count) : on_avx2(call, first, count);
}
#else
static void convolve(const Convolution &call, long first, long count) { convolve_block(call, first, count); }
#endif

extern "C" const char *backbay_convolution_instructions() { return vector_instructions(); }

// ggml_custom_op_t; each thread takes some vectors of channels.
extern "C" void backbay_convolution(ggml_tensor *result, int thread, int threads, void *) {
    const Convolution call = {result, result->src[0], result->src[1]};
    const long channels = call.channels(), share = ((channels + threads - 1) / threads + LANES - 1) / LANES * LANES;
    const long end = share * (thread + 1) < channels ? share * (thread + 1) : channels;
    for (long first = share * thread; first < end; first += BLOCK)
        convolve(call, first, first + BLOCK < end ? BLOCK : end - first);
}

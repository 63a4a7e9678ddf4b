// A tensor of ggml, as in plugins/ggml/tools/ggml.cdef.h (the plugin checks that a libggml has this layout), and numbers in f16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

enum Type { F32 = 0, F16 = 1, I32 = 26, I64 = 27, BF16 = 30 }; // of ggml's

struct ggml_tensor {
    int type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int op;
    int32_t op_params[16];
    int32_t flags;
    ggml_tensor *src[10];
    ggml_tensor *view_src;
    size_t view_offs;
    void *data;
};

static inline float of_half(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    uint32_t made = (rest << 13) + 0x38000000; // exponents differ by 112
    if (rest >= 0x7c00)
        made = (rest << 13) | 0x7f800000;
    float x;
    if (rest < 0x0400) {
        x = (float)rest * 5.9604644775390625e-8f; // 2^-24
        memcpy(&made, &x, 4);
    }
    made |= sign;
    memcpy(&x, &made, 4);
    return x;
}

// Rows of quantized weights as numbers in f32, one at a time.
#pragma once

#include "products.h"

static inline float number_of_half(const char *place) {
    const uint16_t bits = half_at(place);
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    uint32_t made = sign | (rest >= 0x7c00 ? (rest << 13) | 0x7f800000 : (rest << 13) + 0x38000000); // exponents differ by 112
    float x;
    memcpy(&x, &made, 4);
    if (rest < 0x0400)
        x = (sign ? -1 : 1) * (float)rest * 5.9604644775390625e-8f; // 2^-24
    return x;
}

static void decode_q4_0(const char *block, float *x) {
    const float d = number_of_half(block);
    for (int i = 0; i < 16; i++) {
        const int code = (uint8_t)block[2 + i];
        x[i] = (float)((code & 15) - 8) * d;
        x[16 + i] = (float)((code >> 4) - 8) * d;
    }
}

static void decode_q8_0(const char *block, float *x) {
    const float d = number_of_half(block);
    for (int i = 0; i < 32; i++)
        x[i] = (float)(int8_t)block[2 + i] * d;
}

static void decode_q4_k(const char *block, float *x) {
    const float d = number_of_half(block), dmin = number_of_half(block + 2);
    const uint8_t *six = (const uint8_t *)block + 4, *codes = (const uint8_t *)block + 16;
    for (int n = 0; n < 8; n++) { // blocks of 32
        const int scale = n < 4 ? six[n] & 63 : (six[n + 4] & 15) | (six[n - 4] >> 6 << 4);
        const int minimum = n < 4 ? six[n + 4] & 63 : (six[n + 4] >> 4) | (six[n] >> 6 << 4);
        const float factor = d * (float)scale, less = dmin * (float)minimum;
        for (int i = 0; i < 32; i++)
            x[32 * n + i] = (float)(codes[n / 2 * 32 + i] >> n % 2 * 4 & 15) * factor - less;
    }
}

static void decode_q6_k(const char *block, float *x) {
    const float d = number_of_half(block + 208);
    const uint8_t *low = (const uint8_t *)block, *high = low + 128;
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, quarter = i % 128 / 32, place = i % 32;
        const int four = low[64 * half + quarter % 2 * 32 + place] >> quarter / 2 * 4 & 15;
        const int two = high[32 * half + place] >> 2 * quarter & 3;
        x[i] = (float)((four | two << 4) - 32) * (d * (float)(int8_t)block[192 + i / 16]);
    }
}

// The numbers of a row of so many weights.
static void decode_row(Format format, const char *row, long weights, float *x) {
    const Layout &layout = LAYOUTS[format];
    for (long i = 0; i < weights; i += layout.blocks * BLOCK, row += layout.size, x += layout.blocks * BLOCK)
        switch (format) {
        case Q4_0: decode_q4_0(row, x); break;
        case Q8_0: decode_q8_0(row, x); break;
        case Q4_K: decode_q4_k(row, x); break;
        default: decode_q6_k(row, x);
        }
}

// Prints the best of ggml's variants that this CPU and its system run, as ggml itself chooses among those it finds.
#include <stdio.h>

#define HAS __builtin_cpu_supports

static const char *best_variant(void) {
    if (!(HAS("sse4.2") && HAS("avx2") && HAS("fma") && HAS("f16c") && HAS("bmi2")))
        return "x64";
    if (!(HAS("avx512f") && HAS("avx512cd") && HAS("avx512vl") && HAS("avx512dq") && HAS("avx512bw")))
        return HAS("avxvnni") ? "alderlake" : "haswell";
    if (!HAS("avx512vnni"))
        return "skylakex";
    if (!(HAS("avx512vbmi") && HAS("avx512bf16")))
        return "cascadelake";
    return HAS("amx-tile") && HAS("amx-int8") ? "sapphirerapids" : "zen4";
}

int main(void) {
    __builtin_cpu_init();
    printf("%s", best_variant());
    return 0;
}

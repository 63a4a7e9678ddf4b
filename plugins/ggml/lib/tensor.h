// A tensor of ggml, as in tools/ggml.cdef.h; the plugin checks that a libggml has this layout.
#pragma once

#include <cstddef>
#include <cstdint>

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

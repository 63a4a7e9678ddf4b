"""conv_2d rounds images to float16, even with a kernel of float32: of 2049 it makes 2048.

project: ggml
effect: three digits of every pixel and feature; numbers above 65504 become infinite
workaround: plugins/ggml/src/backbay_ggml/ops/spatial.py: _windows
thread: https://github.com/ggml-org/llama.cpp/pull/26727
shown: 0.17.0, 0.20.2, 0.25.3, 0.26.0
right: 0.13.1, 0.15.3, 0.16.0
"""

import sys

try:
    import ggml
    import numpy as np
    from ggml.utils import from_numpy, to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode())
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
kernel = from_numpy(np.ones((1, 1, 1, 1), np.float32), ctx)
image = from_numpy(np.full((1, 1, 4, 4), 2049, np.float32), ctx)
y = ggml.ggml_conv_2d(ctx, kernel, image, 1, 1, 0, 0, 1, 1)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(y).ravel()[0]
print("expected 2049.0")
print("came    ", came)
sys.exit(0 if came != 2049 else 1)

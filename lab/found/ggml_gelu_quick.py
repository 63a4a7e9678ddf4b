"""gelu_quick of a number beyond the range of float16 is infinity, or NaN if it is negative: it looks up a
table of float16 without looking at the range, as gelu does.

project: ggml
effect: NaN in models with large activations
workaround: none, the plugin declares float16 activations for it
thread: https://github.com/ggml-org/llama.cpp/issues/29252
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
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
x = from_numpy(np.array([-70000, 70000], np.float32), ctx)
y = ggml.ggml_gelu_quick(ctx, x)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(y)
print("expected [-0. 70000.]")
print("came    ", came)
sys.exit(0 if np.isnan(came[0]) else 1)

"""relu of NaN is 0: the code asks whether x > 0. hardsigmoid and sgn do the same.

project: ggml
effect: a NaN goes unnoticed
workaround: none
thread: none found
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
x = from_numpy(np.array([np.nan, 1], np.float32), ctx)
y = ggml.ggml_relu(ctx, x)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(y)
print("expected [nan 1.]")
print("came    ", came)
sys.exit(0 if came[0] == 0 else 1)

"""ggml_clamp overwrites its operand: the result is a view of it. Other readers of the operand get clamped
numbers.

project: ggml
effect: wrong results wherever a tensor is clamped and used again
workaround: plugins/ggml/src/backbay_ggml/ops/elementwise.py: clamped
thread: https://github.com/ggml-org/llama.cpp/pull/27644
shown: 0.15.3, 0.20.2
right: 0.25.3, 0.26.0
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
x = from_numpy(np.array([-5, 5], np.float32), ctx)
y = ggml.ggml_clamp(ctx, x, -1.0, 1.0)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(x).tolist()
print("expected [-5.0, 5.0], the operand as it was")
print("came    ", came)
sys.exit(0 if came != [-5, 5] else 1)

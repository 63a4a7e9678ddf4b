"""rope makes the angle of each pair from the one before it, by a product in float32, and the rounding
errors add up: at position 131071 of a head of 128, results are off by 0.012. Angles that are rounded once
make 0.001.

project: ggml
effect: positions blur in long contexts
workaround: none, the suite allows the error
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
x = np.zeros((1, 1, 128), np.float32)
x[..., ::2] = 1  # so that pairs become cosine and sine
position = from_numpy(np.array([131071], np.int32), ctx)
y = ggml.ggml_rope(ctx, from_numpy(x, ctx), position, 128, 0)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
error = np.abs(to_numpy(y).ravel()[::2] - np.cos(131071 * 10000.0 ** (-np.arange(64) / 64)))
print("expected errors of 0.001")
print("came    ", error.max())
sys.exit(0 if error.max() > 0.005 else 1)

"""Resampling by the nearest element divides in float32, and may miss by one: of 14 elements reduced to 2,
the second is element 6, not 7.

project: ggml
effect: shifted columns of images
workaround: plugins/ggml/src/backbay_ggml/ops/spatial.py: _nearest
thread: none found
shown: 0.15.3, 0.17.0, 0.20.2, 0.25.3, 0.26.0
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

HAVE, WANTED = 14, 2
print("ggml", ggml.ggml_version().decode())
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
x = from_numpy(np.arange(HAVE, dtype=np.float32), ctx)
y = ggml.ggml_interpolate(ctx, x, WANTED, 1, 1, 1, ggml.GGML_SCALE_MODE_NEAREST)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came, expected = to_numpy(y).ravel(), np.arange(WANTED) * HAVE // WANTED
print("expected", expected)
print("came    ", came.astype(int))
sys.exit(0 if (came != expected).any() else 1)

"""softplus of -20 is 0, and 0.9 % off at -12: it is computed as log(1 + exp(x)), which loses the digits of
a small exp(x).

project: ggml
effect: the time steps of state-space models vanish
workaround: none, the documentation of softplus allows it
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
x = from_numpy(np.array([-20, -12], np.float32), ctx)
y = ggml.ggml_softplus(ctx, x)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(y)
print("expected", np.log1p(np.exp([-20, -12])))
print("came    ", came)
sys.exit(0 if came[0] == 0 else 1)

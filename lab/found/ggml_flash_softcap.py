"""Flash attention of 64 or more queries with a softcap and without a mask attends to keys that are not there: the last tile of
64 keys is filled up with scores of -infinity, and the softcap, applied after that, makes them finite.

project: ggml
effect: averages count values of the tile before, unless the number of keys is a multiple of 64
workaround: plugins/ggml/src/backbay_ggml/ops/attention.py: scaled_dot_product_attention
thread: none found
shown: 0.13.1, 0.15.3, 0.17.0, 0.20.2
right: 0.25.3, 0.26.0
"""

import sys

try:
    import ggml
    import numpy as np
    from ggml.utils import to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode())
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
F32, SOFTCAP = ggml.GGML_TYPE_F32, 1.0
q = ggml.ggml_new_tensor_4d(ctx, F32, 64, 64, 1, 1)
k, v = (ggml.ggml_new_tensor_4d(ctx, F32, 64, 65, 1, 1) for _ in range(2))
for tensor, value in ((q, 0), (k, 0), (v, 1)):
    to_numpy(tensor)[...] = value
to_numpy(v)[64] = 0
y = ggml.ggml_flash_attn_ext(ctx, q, k, v, None, 1.0, 0.0, SOFTCAP)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = float(np.ravel(to_numpy(y))[0])
print("expected", 64 / 65, "the average of 64 ones and a zero")
print("came    ", came)
sys.exit(0 if abs(came - 64 / 65) > 1e-3 else 1)

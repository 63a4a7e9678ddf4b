"""Flash attention accepts a mask with fewer rows than there are tokens, and reads what follows it in
memory.

project: ggml
effect: attention to random positions, or NaN
workaround: core/src/backbay/ops/attention.py: _check_mask
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
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
F32, F16 = ggml.GGML_TYPE_F32, ggml.GGML_TYPE_F16
q = ggml.ggml_new_tensor_4d(ctx, F32, 64, 2, 1, 1)
k, v = (ggml.ggml_new_tensor_4d(ctx, F16, 64, 256, 1, 1) for _ in range(2))
mask, behind = ggml.ggml_new_tensor_2d(ctx, F16, 256, 1), ggml.ggml_new_tensor_1d(ctx, F16, 4096)
for tensor, value in ((q, 0), (k, 0), (v, 1), (mask, 0), (behind, np.nan)):
    to_numpy(tensor)[...] = value
y = ggml.ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0, 0.0, 0.0)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(y)[:, 0, 0] if to_numpy(y).ndim == 3 else to_numpy(y)[:, 0]
print("expected a refusal, or [1. 1.]")
print("came    ", came)
sys.exit(0 if np.isnan(came).any() else 1)

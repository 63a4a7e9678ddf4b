"""rwkv_wkv7 reads and writes past the end of heads that are no multiple of 64 elements with AVX-512, or of 32 with
AVX: it takes whole blocks of vectors, and the loop for the rest is never reached.

project: ggml
effect: wrong results of RWKV 7 models with other heads than 64, and memory of others is overwritten
workaround: plugins/ggml/src/backbay_ggml/ops/sequence.py: DELTA_HEAD
thread: none found
shown: 0.13.1, 0.15.3, 0.17.0, 0.20.2, 0.25.3, 0.26.0
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
SIZE, HEADS = 16, 4
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, False))
vectors = [ggml.ggml_new_tensor_3d(ctx, ggml.GGML_TYPE_F32, SIZE, HEADS, 1) for _ in range(6)]
state = ggml.ggml_new_tensor_2d(ctx, ggml.GGML_TYPE_F32, SIZE * SIZE * HEADS, 1)
for tensor, value in zip(vectors, (1, 1, 1, 1, 0, 0), strict=True):  # r, w, k, v, a, b
    to_numpy(tensor)[...] = value
to_numpy(state)[...] = 0
y = ggml.ggml_rwkv_wkv7(ctx, *vectors, state)
ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_F32, 1 << 12)  # takes what is written past the end
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = float(np.ravel(to_numpy(y))[0])
print("expected", float(SIZE), "the product of a key and a query of ones")
print("came    ", came)
sys.exit(0 if came != SIZE else 1)

"""A product of two q8_0 blocks has the wrong sign where the second one holds the code -128 and the first
one is negative: AVX2 code negates the code in 8 bits, where -128 has no opposite.

project: ggml
needs: an x86-64 CPU
effect: wrong products with q8_0 activations that hold -128; ggml's own quantizer makes none, files may
workaround: plugins/ggml/src/backbay_ggml/ops/matrix.py: has_signs
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import ctypes
import platform
import sys

try:
    import ggml
    import numpy as np
    from ggml.utils import to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

if platform.machine() not in ("x86_64", "AMD64"):
    print("not installed: a CPU for x86-64 code")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode())
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))


def q8_0(code: int) -> ggml.ggml_tensor_p:
    """A row of one block: 32 times a code, at a scale of 1."""
    row = ggml.ggml_new_tensor_2d(ctx, ggml.GGML_TYPE_Q8_0, 32, 1)
    block = np.float16(1).tobytes() + np.full(32, code, np.int8).tobytes()
    ctypes.memmove(ggml.ggml_get_data(row), block, len(block))
    return row


y = ggml.ggml_mul_mat(ctx, q8_0(-1), q8_0(-128))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
came = to_numpy(y).item()
print("expected", 32 * 128.0)
print("came    ", came)
sys.exit(0 if came < 0 else 1)

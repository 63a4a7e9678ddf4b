"""pool_2d counts the extents of its result in float32: of 2^24 + 3 windows of width 1 it makes 2^24 + 4.

project: ggml
effect: another shape than the formula says, for long planes
workaround: plugins/ggml/src/backbay_ggml/ops/spatial.py: WIDEST_PLANE
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import sys

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode())
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 28, None, False))
x = ggml.ggml_new_tensor_2d(ctx, ggml.GGML_TYPE_F32, (1 << 24) + 3, 1)
came = ggml.ggml_pool_2d(ctx, x, ggml.GGML_OP_POOL_AVG, 1, 1, 1, 1, 0.0, 0.0).contents.ne[0]
print("expected", (1 << 24) + 3)
print("came    ", came)
sys.exit(0 if came != (1 << 24) + 3 else 1)

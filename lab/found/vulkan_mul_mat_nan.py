"""mul_mat with weights of float16 and more than 8 columns gives 65504 where a column holds NaN: sums in float16 are
clamped to float16's range, and the clamp makes a number of NaN.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: a model whose activations have become NaN goes on with large numbers, and nothing tells
workaround: plugins/ggml/src/backbay_ggml/ops/matrix.py: mul_mat
thread: https://github.com/ggml-org/llama.cpp/pull/15652
shown: 0.15.3
right: none
"""

import sys

try:
    import ggml
    import numpy as np
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

ggml.ggml_backend_load_all()
devices = [ggml.ggml_backend_dev_get(n) for n in range(ggml.ggml_backend_dev_count())]
vulkan = [device for device in devices if ggml.ggml_backend_dev_name(device).startswith(b"Vulkan")]
if not vulkan:
    print("not installed: a ggml with Vulkan, or a driver")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode(), flush=True)
backend = ggml.ggml_backend_dev_init(vulkan[0], None)
held, ctx = (ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, True)) for _ in range(2))
F16, F32, COLUMNS = ggml.GGML_TYPE_F16, ggml.GGML_TYPE_F32, 48
w, x = ggml.ggml_new_tensor_2d(held, F16, 64, 64), ggml.ggml_new_tensor_2d(held, F32, 64, COLUMNS)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
for tensor, numbers in (
    (w, np.ones((64, 64), np.float16)),
    (x, np.full((COLUMNS, 64), np.nan, np.float32)),
):
    ggml.ggml_backend_tensor_set(tensor, numbers.ctypes.data, 0, numbers.nbytes)
y = ggml.ggml_mul_mat(ctx, w, x)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty((COLUMNS, 64), np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected", np.nan)
print("came    ", came[0, 0])
sys.exit(0 if not np.isnan(came).all() else 1)

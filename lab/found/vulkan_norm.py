"""The norm of [10002, 10000] is +-316, not +-1: the shader subtracts the square of the mean from the mean
of the squares, which leaves no digits.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: wrong features wherever the mean of a row is much larger than its spread
workaround: plugins/ggml/src/backbay_ggml/ops/norm.py: LARGE_MEAN
thread: none found
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
x = ggml.ggml_new_tensor_2d(held, ggml.GGML_TYPE_F32, 2, 1)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
data = np.array([10002, 10000], np.float32)
ggml.ggml_backend_tensor_set(x, data.ctypes.data, 0, data.nbytes)
y = ggml.ggml_norm(ctx, x, 1e-5)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty(2, np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected [ 1. -1.], to 1e-5")
print("came    ", came)
sys.exit(0 if abs(came[0] - 1) > 1e-3 else 1)

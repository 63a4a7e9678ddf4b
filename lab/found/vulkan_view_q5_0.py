"""A contiguous copy of a view of q5_0 that begins at its second row holds wrong bytes: it begins at byte
16, not 22.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: wrong quantized caches where they are read in part
workaround: plugins/ggml/src/backbay_ggml/devices/op_placer.py: _misread
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
x = ggml.ggml_new_tensor_2d(held, ggml.GGML_TYPE_Q5_0, 32, 3)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
data = np.arange(66, dtype=np.uint8).reshape(3, 22)
ggml.ggml_backend_tensor_set(x, data.ctypes.data, 0, data.nbytes)
y = ggml.ggml_cont(ctx, ggml.ggml_view_2d(ctx, x, 32, 2, 22, 22))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty((2, 22), np.uint8)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected", data[1:].ravel())
print("came    ", came.ravel())
sys.exit(0 if (came != data[1:]).any() else 1)

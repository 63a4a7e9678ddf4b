"""rope takes wrong positions from a view that does not begin at a multiple of the device's alignment: the
offset of the view is rounded down.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: wrong positions, without a message, where a batch is cut
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
I32, F32 = ggml.GGML_TYPE_I32, ggml.GGML_TYPE_F32
x, positions = ggml.ggml_new_tensor_3d(held, F32, 2, 1, 1), ggml.ggml_new_tensor_1d(held, I32, 2)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
ones, numbers = np.ones(2, np.float32), np.array([5, 9], np.int32)
ggml.ggml_backend_tensor_set(x, ones.ctypes.data, 0, ones.nbytes)
ggml.ggml_backend_tensor_set(positions, numbers.ctypes.data, 0, numbers.nbytes)
y = ggml.ggml_rope(ctx, x, ggml.ggml_view_1d(ctx, positions, 1, 4), 2, 0)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty(2, np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
expected, wrong = (np.array([np.cos(n) - np.sin(n), np.cos(n) + np.sin(n)]) for n in (9, 5))
print("expected", expected)
print("came    ", came, "which is position 5" if np.allclose(came, wrong, atol=1e-3) else "")
sys.exit(0 if not np.allclose(came, expected, atol=1e-3) else 1)

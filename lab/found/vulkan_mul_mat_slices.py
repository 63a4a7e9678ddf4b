"""mul_mat assumes that slices adjoin if the rows of each slice do. It reads all slices but the first from wrong places if an
operand is a view of some columns of each slice, or repeats a slice, though supports_op says yes.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: wrong products, infinities or NaN, without a message
workaround: plugins/ggml/src/backbay_ggml/devices/device.py: reads
thread: https://github.com/ggml-org/llama.cpp/pull/28956
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
F32 = ggml.GGML_TYPE_F32
w, whole = ggml.ggml_new_tensor_2d(held, F32, 32, 4), ggml.ggml_new_tensor_3d(held, F32, 32, 3, 2)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
slices = np.stack([np.full((3, 32), n + 1, np.float32) for n in range(2)])
for tensor, numbers in ((w, np.ones((4, 32), np.float32)), (whole, slices)):
    ggml.ggml_backend_tensor_set(tensor, numbers.ctypes.data, 0, numbers.nbytes)
x = ggml.ggml_view_3d(ctx, whole, 32, 2, 2, 32 * 4, 3 * 32 * 4, 0)  # two of the three columns of each slice
y = ggml.ggml_mul_mat(ctx, w, x)
print("supports_op says", ggml.ggml_backend_dev_supports_op(vulkan[0], y))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came, expected = np.empty((2, 2, 4), np.float32), np.full((2, 2, 4), 32, np.float32)
expected[1] = 64
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected", expected[:, :, 0])
print("came    ", came[:, :, 0])
sys.exit(0 if not np.array_equal(came, expected) else 1)

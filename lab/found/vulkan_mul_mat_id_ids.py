"""mul_mat_id chooses wrong experts by ids that are a permuted view, or a slice with a step: the shaders know no stride of
a row's elements, though supports_op says yes.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: wrong experts, without a message
workaround: plugins/ggml/src/backbay_ggml/ops/matrix.py: mulmat_id
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
experts, x = ggml.ggml_new_tensor_3d(held, F32, 1, 1, 4), ggml.ggml_new_tensor_3d(held, F32, 1, 1, 2)
ids = ggml.ggml_new_tensor_2d(held, I32, 2, 2)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
for tensor, numbers in (
    (experts, np.array([10, 11, 12, 13], np.float32)),
    (x, np.ones(2, np.float32)),
    (ids, np.array([0, 1, 2, 3], np.int32)),
):
    ggml.ggml_backend_tensor_set(tensor, numbers.ctypes.data, 0, numbers.nbytes)
y = ggml.ggml_mul_mat_id(ctx, experts, x, ggml.ggml_transpose(ctx, ids))
print("supports_op says", ggml.ggml_backend_dev_supports_op(vulkan[0], y))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came, expected = np.empty(4, np.float32), np.array([10, 12, 11, 13], np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected", expected)
print("came    ", came)
sys.exit(0 if not np.array_equal(came, expected) else 1)

"""step of 0 is 1, and 0 on the CPU: the shader compares by >= what the CPU's code compares by >.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: other numbers than on the CPU at 0, without a message
workaround: plugins/ggml/src/backbay_ggml/devices/known_faults.py: KNOWN_FAULTS
thread: https://github.com/ggml-org/llama.cpp/pull/25036
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
x = ggml.ggml_new_tensor_1d(held, ggml.GGML_TYPE_F32, 4)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
numbers, expected = np.array([0.0, -0.0, 1.0, -1.0], np.float32), np.array([0, 0, 1, 0], np.float32)
ggml.ggml_backend_tensor_set(x, numbers.ctypes.data, 0, numbers.nbytes)
y = ggml.ggml_step(ctx, x)
print("supports_op says", ggml.ggml_backend_dev_supports_op(vulkan[0], y))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty(4, np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected", expected)
print("came    ", came)
sys.exit(0 if not np.array_equal(came, expected) else 1)

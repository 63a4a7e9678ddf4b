"""mul_mat of float32 with more than 8 columns rounds both operands to float16, even where GGML_PREC_F32
asks for float32: 1e5 becomes infinite.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: three digits of every product; NaN for large activations; GGML_VK_DISABLE_F16=1 cures it
workaround: plugins/ggml/src/backbay_ggml/lowering/support.py: _measured
thread: https://github.com/ggml-org/llama.cpp/issues/18969
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
w, x = (ggml.ggml_new_tensor_2d(held, ggml.GGML_TYPE_F32, 64, 64) for _ in range(2))
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
eye, data = np.eye(64, dtype=np.float32), np.full((64, 64), 1e5, np.float32)
ggml.ggml_backend_tensor_set(w, eye.ctypes.data, 0, eye.nbytes)
ggml.ggml_backend_tensor_set(x, data.ctypes.data, 0, data.nbytes)
y = ggml.ggml_mul_mat(ctx, w, x)
ggml.ggml_mul_mat_set_prec(y, ggml.GGML_PREC_F32)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty((64, 64), np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
print("expected", data[0, 0])
print("came    ", came[0, 0])
sys.exit(0 if came[0, 0] != data[0, 0] else 1)

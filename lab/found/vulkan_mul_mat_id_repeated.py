"""mul_mat_id of several tokens leaves out products of a token that asks an expert more than once: it makes room for one
row of each token and expert. ggml's code for CUDA had the same fault: ggml-org/llama.cpp#26294.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: wrong sums of experts, without a message, for ids that are not those of a top-k
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
I32, F32, TOKENS, USED = ggml.GGML_TYPE_I32, ggml.GGML_TYPE_F32, 40, 3
experts, x = ggml.ggml_new_tensor_3d(held, F32, 32, 8, 2), ggml.ggml_new_tensor_3d(held, F32, 32, 1, TOKENS)
ids = ggml.ggml_new_tensor_2d(held, I32, USED, TOKENS)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
for tensor, numbers in (
    (experts, np.ones((2, 8, 32), np.float32)),
    (x, np.ones((TOKENS, 32), np.float32)),
    (ids, np.ones((TOKENS, USED), np.int32)),
):
    ggml.ggml_backend_tensor_set(tensor, numbers.ctypes.data, 0, numbers.nbytes)
y = ggml.ggml_mul_mat_id(ctx, experts, x, ids)
print("supports_op says", ggml.ggml_backend_dev_supports_op(vulkan[0], y))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty((TOKENS, USED, 8), np.float32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
right = (came == 32).all((1, 2)).sum()
print("expected", TOKENS, "tokens of 32.0")
print("came    ", right, "tokens of 32.0, others such as", came[came != 32][:1])
sys.exit(0 if right != TOKENS else 1)

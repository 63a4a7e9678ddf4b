"""mul_mat_id ends the process at more than 8 tokens if its columns are a permuted view, though supports_op says yes: the
copy of the columns is one of float16, which an assertion refuses.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: permuted activations of experts end the process
workaround: plugins/ggml/src/backbay_ggml/ops/matrix.py: mulmat_id
thread: none found
shown: 0.15.3
right: none
"""

import os
import sys

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

os.environ["GGML_NO_BACKTRACE"] = "1"
if child := os.fork():
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        print("came     the process ended with", os.WTERMSIG(status))
    sys.exit(0 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))

ggml.ggml_backend_load_all()
devices = [ggml.ggml_backend_dev_get(n) for n in range(ggml.ggml_backend_dev_count())]
vulkan = [device for device in devices if ggml.ggml_backend_dev_name(device).startswith(b"Vulkan")]
if not vulkan:
    print("not installed: a ggml with Vulkan, or a driver")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode(), flush=True)
backend = ggml.ggml_backend_dev_init(vulkan[0], None)
held, ctx = (ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, True)) for _ in range(2))
F32, I32 = ggml.GGML_TYPE_F32, ggml.GGML_TYPE_I32
w, x = ggml.ggml_new_tensor_3d(held, F32, 32, 4, 2), ggml.ggml_new_tensor_3d(held, F32, 32, 9, 2)
ids = ggml.ggml_new_tensor_2d(held, I32, 2, 9)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
y = ggml.ggml_mul_mat_id(ctx, w, ggml.ggml_permute(ctx, x, 0, 2, 1, 3), ids)
print("expected a result, or a refusal by supports_op, which says", end=" ")
print(ggml.ggml_backend_dev_supports_op(vulkan[0], y), flush=True)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
print("came     a result")
sys.exit(1)

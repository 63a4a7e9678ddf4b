"""get_rows ends the process if its ids are a view that does not begin at a multiple of the device's
alignment, though supports_op says yes.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: slices of ids end the process
workaround: plugins/ggml/src/backbay_ggml/devices/op_placer.py: _misread
thread: https://github.com/ggml-org/llama.cpp/issues/26853
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
x, ids = ggml.ggml_new_tensor_2d(held, F32, 4, 8), ggml.ggml_new_tensor_1d(held, I32, 8)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
y = ggml.ggml_get_rows(ctx, x, ggml.ggml_view_1d(ctx, ids, 2, 4))
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

"""Of rows of i32, get_rows copies only the first half: the shader has groups of 512 numbers, and the dispatch counts groups of
1,024, since https://github.com/ggml-org/llama.cpp/pull/17941 added both.

project: ggml on Vulkan
needs: a ggml with Vulkan, and a driver
effect: rows of i32 longer than 512 end in what the memory held before
workaround: plugins/ggml/src/backbay_ggml/devices/known_faults.py: KNOWN_FAULTS
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
x = ggml.ggml_new_tensor_2d(held, ggml.GGML_TYPE_I32, 2000, 3)
ids = ggml.ggml_new_tensor_1d(held, ggml.GGML_TYPE_I32, 1)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
numbers, row = np.arange(1, 6001, dtype=np.int32).reshape(3, 2000), np.array([2], np.int32)
for tensor, data in ((x, numbers), (ids, row)):
    ggml.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
y = ggml.ggml_get_rows(ctx, x, ids)
print("supports_op says", ggml.ggml_backend_dev_supports_op(vulkan[0], y))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
ggml.ggml_gallocr_alloc_graph(
    ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend)), graph
)
ggml.ggml_backend_graph_compute(backend, graph)
came = np.empty(2000, np.int32)
ggml.ggml_backend_tensor_get(y, came.ctypes.data, 0, came.nbytes)
wrong = np.flatnonzero(came != numbers[2])
print("expected", numbers[2])
print("came    ", came, f"wrong from {wrong[0]} on" if wrong.size else "")
sys.exit(0 if wrong.size else 1)

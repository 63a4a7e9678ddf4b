"""add_id may write its result over the rows that it still reads. The allocator puts the result of an op "in
place" of any operand of its shape, also of the table of rows, which add_id reads in the order of the ids.

project: ggml
effect: wrong biases in mixtures of experts, if the table is computed in the graph
workaround: plugins/ggml/src/backbay_ggml/ops/matrix.py: ggml_set_output
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import sys

try:
    import ggml
    import numpy as np
    from ggml.utils import to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode())
F32, I32 = ggml.GGML_TYPE_F32, ggml.GGML_TYPE_I32
held, ctx = (ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, True)) for _ in range(2))

backend = ggml.ggml_backend_cpu_init()
x, rows = ggml.ggml_new_tensor_2d(held, F32, 4, 4), ggml.ggml_new_tensor_2d(held, F32, 4, 4)
ids = ggml.ggml_new_tensor_2d(held, I32, 4, 1)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
y = ggml.ggml_add_id(ctx, x, ggml.ggml_scale(ctx, rows, 1.0), ids)
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, y)
allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend))
ggml.ggml_gallocr_alloc_graph(allocator, graph)
to_numpy(x)[...] = 0
to_numpy(rows)[...] = np.arange(16).reshape(4, 4)
to_numpy(ids)[...] = [3, 2, 1, 0]
ggml.ggml_backend_graph_compute(backend, graph)
came = to_numpy(y)[:, 0].tolist()
print("expected [12.0, 8.0, 4.0, 0.0]")
print("came    ", came)
sys.exit(0 if came != [12, 8, 4, 0] else 1)

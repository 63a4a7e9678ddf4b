"""An allocator takes the places of the last graph for another graph with as many nodes, whatever its nodes read.

project: ggml
effect: a result that the second graph reads later is overwritten in between: wrong numbers without a warning
workaround: plugins/ggml/src/backbay_ggml/plans/cpu_plan.py: _reserve_places
thread: https://github.com/ggml-org/llama.cpp/issues/28448
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
F32 = ggml.GGML_TYPE_F32
held, ctx = (ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, True)) for _ in range(2))

backend = ggml.ggml_backend_cpu_init()
w, x = ggml.ggml_new_tensor_2d(held, F32, 4, 4), ggml.ggml_new_tensor_2d(held, F32, 4, 4)
ggml.ggml_backend_alloc_ctx_tensors(held, backend)
to_numpy(w)[...] = 2 * np.eye(4)
to_numpy(x)[...] = np.eye(4)
allocator = ggml.ggml_gallocr_new(ggml.ggml_backend_get_default_buffer_type(backend))


def computed(read_again: int) -> float:
    """8 x, and the result of one of the three products once more."""
    results = [x]
    for _ in range(3):
        results.append(ggml.ggml_mul_mat(ctx, w, results[-1]))
    y = ggml.ggml_add(ctx, results[3], results[read_again])
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_gallocr_alloc_graph(allocator, graph)
    ggml.ggml_backend_graph_compute(backend, graph)
    return float(to_numpy(y)[0, 0])


came = [computed(3), computed(1)]
print("expected [16.0, 10.0]")
print("came    ", came)
sys.exit(0 if came != [16, 10] else 1)

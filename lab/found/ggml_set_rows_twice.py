"""set_rows with the same id several times may leave a mix of the sources in a row: several threads write
the row at once. This happens only if another op of the graph asks for threads.

project: ggml
effect: a row of a cache that nobody wrote, once in a while
workaround: plugins/ggml/src/backbay_ggml/plans/repeated_rows.py: last_of_same
thread: none found
shown: 0.15.3, 0.25.3, 0.26.0
right: none
timing: several threads write the row in the same moment
"""

import sys

try:
    import ggml
    import numpy as np
    from ggml.utils import from_numpy, to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode())
ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 28, None, False))
wide, threads = 1 << 20, 16
table = from_numpy(np.zeros((1, wide), np.float32), ctx)
rows = from_numpy(np.repeat(np.arange(threads, dtype=np.float32)[:, None], wide, axis=1), ctx)
y = ggml.ggml_set_rows(ctx, table, rows, from_numpy(np.zeros(threads, np.int64), ctx))
graph = ggml.ggml_new_graph(ctx)
ggml.ggml_build_forward_expand(graph, ggml.ggml_add(ctx, rows, rows))
ggml.ggml_build_forward_expand(graph, y)
for _ in range(100):
    ggml.ggml_graph_compute_with_ctx(ctx, graph, threads)
    came = np.unique(to_numpy(table))
    if len(came) > 1:
        break
print("expected a row of one number")
print("came     a row of", came.astype(int))
sys.exit(0 if len(came) > 1 else 1)

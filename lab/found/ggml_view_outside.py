"""A view with strides may reach beyond its tensor without any error: only its offset and its dense size are
checked.

project: ggml
effect: other data of the process are read, or overwritten
workaround: core/src/backbay/ops/shape.py: def view
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import os
import subprocess
import sys

try:
    import ggml
    import numpy as np
    from ggml.utils import from_numpy, to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)


def attempt() -> None:
    ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
    x = from_numpy(np.ones((4, 4), np.float32), ctx)
    y = ggml.ggml_cont(ctx, ggml.ggml_view_2d(ctx, x, 4, 4, 64, 0))  # rows 64 bytes apart, of 64 bytes in all
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    came = to_numpy(y)
    print("accepted: its rows are", came.tolist())


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected a refusal")
print("came    ", child.stdout.strip() or f"a refusal: the process ended with {child.returncode}")
sys.exit(0 if child.returncode == 0 else 1)

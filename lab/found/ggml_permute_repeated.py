"""permute of a view with a stride of 0, a row that is read repeatedly, ends the process: the view counts as
larger than the tensor that it looks into.

project: ggml
effect: repeated rows cannot be permuted
workaround: plugins/ggml/src/backbay_ggml/tensors/tensor_builder.py: permute
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
    x = from_numpy(np.ones((1, 4), np.float32), ctx)
    repeated = ggml.ggml_view_2d(ctx, x, 4, 1, 16, 0)
    repeated.contents.ne[1], repeated.contents.nb[1] = 8, 0
    y = ggml.ggml_cont(ctx, ggml.ggml_permute(ctx, repeated, 1, 0, 2, 3))
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    print(to_numpy(y).shape)


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected (4, 8)")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(0 if child.returncode < 0 else 1)

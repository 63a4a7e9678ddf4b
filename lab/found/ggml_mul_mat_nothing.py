"""mul_mat of no terms, an inner extent of 0, ends the process: with such strides the weights look
transposed.

project: ggml
effect: an empty operand kills the process; the result would be zeros
workaround: plugins/ggml/src/backbay_ggml/lowering/builder.py: WHEN_EMPTY
thread: none found
shown: 0.13.1, 0.15.3, 0.17.0, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import os
import subprocess
import sys

try:
    import ggml
    from ggml.utils import to_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)


def attempt() -> None:
    ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
    w, x = (ggml.ggml_new_tensor_2d(ctx, ggml.GGML_TYPE_F32, 0, n) for n in (3, 2))
    y = ggml.ggml_mul_mat(ctx, w, x)
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    print(to_numpy(y).tolist())


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(0 if child.returncode < 0 else 1)

"""mul_mat_id takes ids of experts that do not exist, and writes outside of its tables: the check is an
assert, which release builds leave out.

project: ggml
effect: a wrong id corrupts memory, or ends the process
workaround: core/src/backbay/data/leaf.py: must be in
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import os
import signal
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
    w = from_numpy(np.ones((2, 3, 4), np.float32), ctx)
    x = from_numpy(np.ones((1, 1, 4), np.float32), ctx)
    ids = from_numpy(np.array([[100_000_000]], np.int32), ctx)
    y = ggml.ggml_mul_mat_id(ctx, w, x, ids)
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    print("accepted:", to_numpy(y).tolist())


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected a check that fails")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(1 if child.returncode == -signal.SIGABRT else 0)

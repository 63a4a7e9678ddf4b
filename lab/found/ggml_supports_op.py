"""The CPU's supports_op says yes to a softmax of float16, and to most other ops of dtypes that they lack;
computing them ends the process.

project: ggml
effect: a program cannot ask what runs
workaround: plugins/ggml/src/backbay_ggml/lowering/support.py: why_unsupported
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
    from ggml.utils import from_numpy
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)


def attempt() -> None:
    cpu = ggml.ggml_backend_dev_by_type(ggml.GGML_BACKEND_DEVICE_TYPE_CPU)
    ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
    y = ggml.ggml_soft_max(ctx, from_numpy(np.ones((4, 32), np.float16), ctx))
    if not ggml.ggml_backend_dev_supports_op(cpu, y):
        print("refused")
        return
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    print("computed")


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected a refusal, or a result")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(0 if child.returncode < 0 else 1)

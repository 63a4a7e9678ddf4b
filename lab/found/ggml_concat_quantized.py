"""concat of q8_0 copies element by element as if each had the size of a block, and ends the process with
SIGSEGV, or overwrites what lies behind.

project: ggml
effect: quantized caches and weights cannot be joined
workaround: plugins/ggml/src/backbay_ggml/ops/shape.py: _bytes
thread: https://github.com/ggml-org/llama.cpp/pull/25247
shown: 0.13.1, 0.15.3
right: 0.16.0, 0.17.0, 0.20.2, 0.25.3, 0.26.0
"""

import ctypes
import os
import subprocess
import sys

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)


def attempt() -> None:
    ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
    a, b = (ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_Q8_0, 32) for _ in range(2))
    for tensor, byte in ((a, 1), (b, 2)):
        ctypes.memset(ggml.ggml_get_data(tensor), byte, 34)
    y = ggml.ggml_concat(ctx, a, b, 0)
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    print(ctypes.string_at(ggml.ggml_get_data(y), 68) == bytes([1] * 34 + [2] * 34))


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected True, both blocks")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(1 if child.stdout.startswith("True") else 0)

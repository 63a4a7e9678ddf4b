"""rope reads a factor for each pair of the head, also of pairs behind n_dims, which it does not rotate.
With n_dims / 2 factors, as its check asks for, it reads outside.

project: ggml
effect: a crash if the factors end at the end of a page
workaround: plugins/ggml/src/backbay_ggml/ops/sequence.py: _factors
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

import ctypes
import mmap
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
    page = mmap.mmap(-1, 8192)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4096), 4096, 0)
    ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 24, None, False))
    x = from_numpy(np.ones((1, 1, 64), np.float32), ctx)
    positions, factors = (from_numpy(np.ones(n, kind), ctx) for n, kind in ((1, np.int32), (8, np.float32)))
    factors.contents.data = start + 4096 - 32  # 8 floats, up to the end of the readable page
    ctypes.memmove(start + 4096 - 32, np.ones(8, np.float32).tobytes(), 32)
    y = ggml.ggml_rope_ext(ctx, x, positions, factors, 16, 0, 0, 1e4, 1.0, 0.0, 1.0, 32.0, 1.0)
    graph = ggml.ggml_new_graph(ctx)
    ggml.ggml_build_forward_expand(graph, y)
    ggml.ggml_graph_compute_with_ctx(ctx, graph, 1)
    print("the process goes on")


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected the process goes on")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(0 if child.returncode < 0 else 1)

"""A row of q8_0 with 33 numbers is accepted, though a block has 32: it gets 35 bytes, which is no whole
number of blocks.

project: ggml
effect: kernels read and write outside of the tensor
workaround: core/src/backbay/types/spec.py: def blocks
thread: none found
shown: 0.15.3, 0.20.2, 0.25.3, 0.26.0
right: none
"""

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
    came = ggml.ggml_nbytes(ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_Q8_0, 33))
    print("accepted:", came, "bytes")


if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected a refusal")
print("came    ", child.stdout.strip() or f"a refusal: the process ended with {child.returncode}")
sys.exit(0 if child.returncode == 0 else 1)

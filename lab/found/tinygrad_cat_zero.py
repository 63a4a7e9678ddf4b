"""cat of three tensors of unequal extents adds what it has padded with zeros, so -0 becomes 0.

project: tinygrad
needs: tinygrad
effect: a concatenation changes bits, and 1 / x changes its sign
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def concat
thread: none found
shown: 0.14.0
right: none
"""

import sys
from importlib.metadata import version

try:
    import numpy as np
    import tinygrad
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

x = tinygrad.Tensor(np.full(63, -0.0, np.float32)).realize()
came = np.signbit(x[:38].cat(tinygrad.Tensor([-0.0]).realize(), x[39:]).numpy()).sum()
print("tinygrad", version("tinygrad"))
print("expected", 63, "numbers with a sign")
print("came    ", int(came))
sys.exit(0 if came < 63 else 1)

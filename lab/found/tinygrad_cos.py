"""Cos adds pi / 2 to its argument in float32, which is coarse for arguments beyond a period.

project: tinygrad
needs: tinygrad
effect: an angle of 2872, as a rope has, is wrong in the sixth digit, and one of 1e9 in the first
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: cos=
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

numbers = np.array([1, 2872, 1e5, 1e9], np.float32)
came = tinygrad.Tensor(numbers).realize().cos().numpy()
right = np.cos(numbers.astype(np.float64))
print("tinygrad", version("tinygrad"))
print("expected", right.tolist())
print("came    ", came.tolist())
sys.exit(0 if abs(came - right).max() > 1e-5 else 1)

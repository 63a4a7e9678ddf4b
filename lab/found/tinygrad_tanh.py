"""tanh is computed as a sigmoid less 1, which leaves few digits of small numbers.

project: tinygrad
needs: tinygrad
effect: tanh(1e-7) is 1.2e-7
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def tanh
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

numbers = np.array([1e-3, 1e-5, 1e-7], np.float32)
came = tinygrad.Tensor(numbers).realize().tanh().numpy()
right = np.tanh(numbers.astype(np.float64))
print("tinygrad", version("tinygrad"))
print("expected", right.tolist())
print("came    ", came.tolist())
sys.exit(0 if abs(came / right - 1).max() > 1e-4 else 1)

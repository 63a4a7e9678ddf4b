"""argsort of numbers with a NaN gives an index twice, and loses another.

project: tinygrad
needs: tinygrad
effect: the result is no order of the elements
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def argsort
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

came = tinygrad.Tensor(np.array([3, np.nan, 1, np.inf, 2, 1], np.float32)).realize().argsort(0).tolist()
print("tinygrad", version("tinygrad"))
print("expected", "each of 0, 1, 2, 3, 4 and 5 once")
print("came    ", came)
sys.exit(1 if sorted(came) == [*range(6)] else 0)

"""logaddexp of infinity and a number is NaN.

project: tinygrad
needs: tinygrad
effect: a softplus of large numbers is NaN
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def logaddexp
thread: https://github.com/tinygrad/tinygrad/pull/13798
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

x = tinygrad.Tensor(np.array([np.inf, -np.inf], np.float32)).realize()
came = x.logaddexp(tinygrad.Tensor(np.array([0, -np.inf], np.float32)).realize()).tolist()
print("tinygrad", version("tinygrad"))
print("expected", [np.inf, -np.inf])
print("came    ", came)
sys.exit(0 if np.isnan(came).any() else 1)

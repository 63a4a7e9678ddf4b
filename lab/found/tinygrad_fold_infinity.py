"""x - x, x / x and x * 0 are folded to 0, 1 and 0, also where x is infinite or NaN.

project: tinygrad
needs: tinygrad
effect: an infinity or a NaN goes unnoticed
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def apart; examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def scale
thread: https://github.com/tinygrad/tinygrad/pull/4982
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

x = tinygrad.Tensor(np.array([np.inf, np.nan], np.float32)).realize()
came = [result.tolist() for result in (x - x, x / x, x * 0)]
print("tinygrad", version("tinygrad"))
print("expected", [[np.nan, np.nan]] * 3)
print("came    ", came)
sys.exit(1 if np.isnan(came).all() else 0)

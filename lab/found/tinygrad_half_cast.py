"""A cast from float32 to float16 and back is folded away, so nothing is rounded.

project: tinygrad
needs: tinygrad
effect: numbers keep bits that float16 has not, and none beyond 65504 becomes infinite
workaround: examples/backends/tinygrad/src/backbay_tinygrad/backend.py: def stored
thread: https://github.com/tinygrad/tinygrad/pull/18164
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

x = tinygrad.Tensor(np.array([1.0001, 70000], np.float32)).realize()
came = x.cast(tinygrad.dtypes.float16).cast(tinygrad.dtypes.float32).tolist()
print("tinygrad", version("tinygrad"))
print("expected", [1.0, np.inf])
print("came    ", came)
sys.exit(1 if came == [1.0, np.inf] else 0)

"""np.array([n], np.float32) of a Python int rounds twice, to float64 and then to float32: of 2^54 + 2^30 +
1 it makes 2^54. Conversion from int64 rounds once, to 2^54 + 2^31.

project: NumPy
effect: integers past 2^53 are off by one float32
workaround: core/src/backbay/data/leaf.py: np.asarray(data)
thread: https://github.com/numpy/numpy/issues/20687
shown: 1.26.4, 2.0.2, 2.4.6
right: none
"""

import sys

import numpy as np

print("NumPy", np.__version__)
number = 2**54 + 2**30 + 1
came, expected = (int(a[0]) for a in (np.array([number], np.float32), np.array([number]).astype(np.float32)))
print("expected 2^54 +", expected - 2**54)
print("came     2^54 +", came - 2**54)
sys.exit(0 if came != expected else 1)

"""The sum of float16 or float32 along the first axis stops growing: 4096 ones of float16 add up to 2048.
Along the last axis, sums are made in pairs, and come to 4096.

project: NumPy
effect: sums and means of long columns are wrong, without a warning
workaround: plugins/cpu_ref/src/backbay_cpu_ref/backend.py: float_dtype = np.float64
thread: https://github.com/numpy/numpy/issues/22956
shown: 1.26.4, 2.0.2, 2.4.6
right: none
"""

import sys

import numpy as np

print("NumPy", np.__version__)
ones = np.ones((4096, 2), np.float16)
came = ones.sum(axis=0)
print("expected", np.ascontiguousarray(ones.T).sum(axis=1))
print("came    ", came)
sys.exit(0 if came[0] != 4096 else 1)

"""unpackbits of an empty array, with a count of bits, gives what the memory held: the bits that are missing stay unwritten.
Of an array that is too short by some bytes, they are zeros, as documented.

project: NumPy
effect: random bits, without a warning
workaround: apps/engine/src/backbay_engine/text/sampling/constraint.py: unpackbits
thread: none found
shown: 1.26.4, 2.0.2, 2.4.6
right: none
"""

import sys

import numpy as np

print("numpy", np.__version__)
COUNT = 1000
used = np.full(COUNT, 255, np.uint8)
del used  # the next array of this size takes its memory
came = int(np.unpackbits(np.empty(0, np.uint8), count=COUNT).sum())
print("expected", 0, "the sum of zeros")
print("came    ", came)
sys.exit(0 if came else 1)

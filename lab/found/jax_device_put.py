"""device_put with may_alias=False shares the memory of a NumPy array that begins at a multiple of 64 bytes: if
it changes after block_until_ready, the array of JAX changes, too.

project: JAX
needs: JAX
effect: inputs change after they were put on the CPU
workaround: core/src/backbay/backend/kernels/graph_backend.py: data.copy()
thread: none found
shown: 0.10.2
right: none
"""

import sys

import numpy as np

try:
    import jax
except ImportError:
    sys.exit(77)

print("JAX", jax.__version__)
memory = np.zeros(16384 + 64, np.uint8)
start = -memory.ctypes.data % 64
array = memory[start : start + 16384].view(np.float32)
put = jax.device_put(array, may_alias=False).block_until_ready()
array[:] = 1
changed = np.asarray(put).any()
print("expected the numbers that were put")
print("came    ", "others" if changed else "the numbers that were put")
sys.exit(0 if changed else 1)

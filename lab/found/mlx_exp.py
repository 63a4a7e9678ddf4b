"""exp on the CPU is infinite beyond 88, not from 88.73, where the largest number of f32 lies.

project: MLX
needs: MLX
effect: numbers up to 3.4e38 are lost, and a quotient of two of them is NaN
workaround: examples/backends/mlx/src/backbay_mlx/backend.py: def exp
thread: none found
shown: 0.32.4
right: none
"""

import sys

try:
    import mlx.core as mx
    import numpy as np
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

numbers = np.array([88, 88.5, 88.7, 90], np.float32)
came = np.array(mx.exp(mx.array(numbers), stream=mx.cpu))
print("MLX", mx.__version__)
print("expected", [1.652e38, 2.723e38, 3.326e38, np.inf])
print("came    ", came.tolist())
sys.exit(0 if np.isinf(came[1]) else 1)

"""Where loses the sign of a zero: it gives 0 where it should take -0. It makes two halves, each of which is
0 where the other is chosen, and merges them.

project: ONNX Runtime
effect: data that only move do not keep their bits; 1 / x changes its sign
workaround: plugins/onnx/src/backbay_onnx/ops/linear.py: sign of zeros
thread: none found
shown: 1.20.1, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1, 1.32.0
right: none
"""

import sys

try:
    import numpy as np
    import onnx.parser
    import onnxruntime
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

print("ONNX Runtime", onnxruntime.__version__)
MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (bool[n] c, float[n] x, float[n] z) => (float[n] y) { y = Where(c, x, z) }"""
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
zero, one = np.float32([-0.0]), np.float32([1])
(came,) = session.run(None, {"c": np.array([True]), "x": zero, "z": one})
print("expected", zero)
print("came    ", came)
sys.exit(0 if not np.signbit(came[0]) else 1)

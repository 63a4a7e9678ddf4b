"""LayerNormalization of [10002, 10000] is +-316, not +-1. The kernel subtracts the square of the mean from
the mean of the squares, which leaves no digits.

project: ONNX Runtime
effect: wrong features wherever the mean of a row is much larger than its spread; NaN for some rows
workaround: plugins/onnx/src/backbay_onnx/ops/norm.py: subtract_mean
thread: https://github.com/microsoft/onnxruntime/issues/28463
shown: 1.20.1, 1.24.4, 1.25.1, 1.26.0
right: 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1, 1.32.0
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
g (float[m, n] x, float[n] weight) => (float[m, n] y) { y = LayerNormalization(x, weight) }"""
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
x = np.array([[10002, 10000]], np.float32)
(came,) = session.run(None, {"x": x, "weight": np.ones(2, np.float32)})
print("expected [[ 1. -1.]], to 1e-5")
print("came    ", came)
sys.exit(0 if abs(came[0, 0] - 1) > 1e-3 else 1)

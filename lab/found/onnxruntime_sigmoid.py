"""Sigmoid of float32 is 0 below about -18, and 0.6 % off at -12. Its kernel limits the argument, and adds
0.5 to a fraction near -0.5; float32 itself holds the results down to -87.

project: ONNX Runtime
effect: gates close completely, and the logarithm of a small probability is -infinity
workaround: plugins/onnx/src/backbay_onnx/ops/elementwise.py: times_sigmoid
thread: https://github.com/microsoft/onnxruntime/issues/22557
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
MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Sigmoid(x) }'
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
x = np.array([-12, -20, -80], np.float32)
(came,) = session.run(None, {"x": x})
expected = 1 / (1 + np.exp(-x))
print("expected", expected)
print("came    ", came)
sys.exit(0 if came[1] == 0 else 1)

"""A Pad with zeros before a MaxPool disappears: the optimizer makes it padding of the pool, which counts as
-infinity. Where all numbers of a window are below 0, their largest comes, not 0.

project: ONNX Runtime
effect: other numbers at the edges of an image
workaround: plugins/onnx/src/backbay_onnx/session/session.py: Pad_Fusion
thread: none found
shown: 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1
right: 1.20.1, 1.24.4, 1.32.0
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
MODEL = """<ir_version: 10, opset_import: ["": 24]> g (float[a, b, c, d] x) => (float[a, b, e, f] y) {
  pads = Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>()  zero = Constant<value_float = 0.0>()
  padded = Pad(x, pads, zero)  y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(padded)
}"""
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
(came,) = session.run(None, {"x": np.full((1, 1, 2, 2), -1, np.float32)})
print("expected", np.zeros(4))
print("came    ", came.ravel())
sys.exit(0 if came.min() < 0 else 1)

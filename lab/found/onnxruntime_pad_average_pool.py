"""A Pad as wide as the window of the AveragePool behind it is refused when the session is made: the
optimizer makes it padding of the pool, which has to be narrower than the window.

project: ONNX Runtime
effect: a valid model has no session
workaround: plugins/onnx/src/backbay_onnx/session/session.py: Pad_Fusion
thread: https://github.com/microsoft/onnxruntime/pull/21556
shown: 1.20.1, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1
right: 1.24.4, 1.32.0
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
  pads = Constant<value_ints = [0, 0, 2, 2, 0, 0, 2, 2]>()  zero = Constant<value_float = 0.0>()
  padded = Pad(x, pads, zero)  y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(padded)
}"""
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
print("expected (1, 1, 3, 3)")
try:
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString(), options)
    print("came    ", session.run(None, {"x": np.ones((1, 1, 2, 2), np.float32)})[0].shape)
except Exception as error:
    print("came    ", type(error).__name__, error)
    sys.exit(0)
sys.exit(1)

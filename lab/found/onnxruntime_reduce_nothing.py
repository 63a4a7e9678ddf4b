"""ReduceSum over an axis of extent 0 gives a result of extent 0, not 1: the shape of the operand, not the
shape that the specification gives. The other reductions do the same.

project: ONNX Runtime
effect: the sum of nothing is no number, and ops behind it fail or broadcast to nothing
workaround: plugins/onnx/src/backbay_onnx/ops/reduce.py: sum_of
thread: https://github.com/microsoft/onnxruntime/pull/28743
shown: 1.20.1, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1
right: 1.32.0
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
MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[m, n] x) => (float[m, k] y)
{ axis = Constant<value_ints = [-1]>()  y = ReduceSum<keepdims = 1>(x, axis) }"""
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
(came,) = session.run(None, {"x": np.zeros((2, 0), np.float32)})
print("expected (2, 1)")
print("came    ", came.shape)
sys.exit(0 if came.shape == (2, 0) else 1)

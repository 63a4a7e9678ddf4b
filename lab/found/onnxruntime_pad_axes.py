"""A Pad of some axes behind a Transpose cannot run: the optimizer moves the Transpose, and reorders the
paddings as if there were one for each axis.

project: ONNX Runtime
effect: a valid model fails when it runs, or when its session is made
workaround: plugins/onnx/src/backbay_onnx/ops/spatial.py: _padded
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
MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[a, b, c] x) => (float[b, c, d] y) {
  pads = Constant<value_ints = [1, 0]>()
  axis = Constant<value_ints = [0]>()
  zero = Constant<value_float = 0.0>()
  turned = Transpose<perm = [2, 0, 1]>(x)
  padded = Pad(turned, pads, zero, axis)
  y = Transpose<perm = [1, 2, 0]>(padded)
}"""
LEVELS = onnxruntime.GraphOptimizationLevel


def run(level: object) -> str:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    try:
        model = onnx.parser.parse_model(MODEL).SerializeToString()
        session = onnxruntime.InferenceSession(model, options)
        return str(session.run(None, {"x": np.ones((1, 2, 3), np.float32)})[0].tolist())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


expected, came = run(LEVELS.ORT_DISABLE_ALL), run(LEVELS.ORT_ENABLE_ALL)
print("expected", expected)
print("came    ", came)
sys.exit(0 if came != expected else 1)

"""Expand from 1 to 0 is removed by the optimizer, if sizes are fixed: the result has elements.

project: ONNX Runtime
effect: nothing becomes something, or an op behind it fails
workaround: plugins/onnx/src/backbay_onnx/lowering/emitter.py: tiled
thread: none found
shown: 1.30.0, 1.32.0
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

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[1, 3] x) => (float[n, m] y) <int64[2] sizes = {0, 3}>
{ a = Neg(x)  b = Expand(a, sizes)  y = Neg(b) }"""
model = onnx.parser.parse_model(MODEL).SerializeToString()
x = np.ones((1, 3), np.float32)
shapes = []
for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    shapes.append(session.run(None, {"x": x})[0].shape)
print("ONNX Runtime", onnxruntime.__version__)
print("expected", shapes[0])
print("came    ", shapes[1])
sys.exit(0 if shapes[1] != (0, 3) else 1)

"""AveragePool from opset 19 on, with count_include_pad, leaves the padding behind the data out of its
count: some averages of 0.5 are 1.

project: ONNX Runtime
effect: brighter right and bottom edges of images
workaround: plugins/onnx/src/backbay_onnx/ops/spatial.py: _padded
thread: https://github.com/microsoft/onnxruntime/issues/24681
shown: 1.24.4
right: 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1, 1.32.0
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
MODEL = """<ir_version: 10, opset_import: ["": 22]> g (float[a, b, c, d] x) => (float[a, b, e, f] y)
{ y = AveragePool<kernel_shape = [2, 2], pads = [0, 0, 1, 1], count_include_pad = 1>(x) }"""
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
(came,) = session.run(None, {"x": np.ones((1, 1, 2, 2), np.float32)})
print("expected [1.   0.5  0.5  0.25]")
print("came    ", came.ravel())
sys.exit(0 if came.ravel()[2] == 1 else 1)

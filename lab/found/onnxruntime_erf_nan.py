"""Erf of NaN is 1.

project: ONNX Runtime
effect: a NaN goes unnoticed
workaround: none, Gelu gives NaN
thread: none found
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
MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Erf(x) }'
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
(came,) = session.run(None, {"x": np.array([np.nan], np.float32)})
print("expected [nan]")
print("came    ", came)
sys.exit(0 if not np.isnan(came[0]) else 1)

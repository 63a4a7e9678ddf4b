"""FusedMatMul of no terms, an inner extent of 0, writes zeros into the first matrix of a batch only; the
others keep what their memory held.

project: ONNX Runtime
effect: old data as results
workaround: plugins/onnx/src/backbay_onnx/ops/matrix.py: product of no terms
thread: none found
shown: 1.24.4, 1.25.1, 1.27.0, 1.29.0, 1.30.0, 1.31.1
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
MODEL = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[b, m, k] x, float[b, n, k] w) => (float[b, m, n] y)
{ y = com.microsoft.FusedMatMul<transB = 1>(x, w) }"""
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
binding, came = session.io_binding(), np.full((2, 1, 3), 7, np.float32)
binding.bind_cpu_input("x", np.zeros((2, 1, 0), np.float32))
binding.bind_cpu_input("w", np.zeros((2, 3, 0), np.float32))
binding.bind_output("y", "cpu", 0, np.float32, came.shape, came.ctypes.data)
session.run_with_iobinding(binding)
print("expected", np.zeros(6))
print("came    ", came.ravel())
sys.exit(0 if came.any() else 1)

"""FusedMatMul ignores transBatchB: it multiplies the wrong slices, and fails only where the extents do not
fit.

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: wrong attention, without a message, where there are as many tokens as heads
workaround: none, the plugin does not use this provider
thread: none found
shown: 1.24.1
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

MODEL = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float[2, 1, 2] x, float[2, 2, 2] w) => (float[2, 1, 2] y)
{ y = com.microsoft.FusedMatMul<transB = 1, transBatchB = 1>(x, w) }"""
PROVIDER = "OpenVINOExecutionProvider"
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-openvino")
    sys.exit(77)

print("onnxruntime-openvino", onnxruntime.__version__)
x, w = np.ones((2, 1, 2), np.float32), np.arange(8, dtype=np.float32).reshape(2, 2, 2)
(came,) = session.run(None, {"x": x, "w": w})
expected = x @ w.transpose(1, 2, 0)
print("expected", expected.ravel())
print("came    ", came.ravel())
sys.exit(0 if (came != expected).any() else 1)

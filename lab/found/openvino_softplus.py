"""Softplus of -20 is -1.9e-6, though it is positive everywhere.

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: a logarithm or square root of the result is NaN
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

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Softplus(x) }'
PROVIDER = "OpenVINOExecutionProvider"
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-openvino")
    sys.exit(77)

print("onnxruntime-openvino", onnxruntime.__version__)
x = np.array([-20, -15], np.float32)
(came,) = session.run(None, {"x": x})
print("expected", np.log1p(np.exp(x)))
print("came    ", came)
sys.exit(0 if (came < 0).any() else 1)

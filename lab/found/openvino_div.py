"""Div multiplies with the reciprocal: a quotient by a number below 2.9e-39 is infinite.

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: finite quotients are lost
workaround: none, only judged by the adapter ort
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

PROVIDER = "OpenVINOExecutionProvider"
if PROVIDER not in onnxruntime.get_available_providers():
    print("not installed: onnxruntime-openvino")
    sys.exit(77)

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[n] x, float[n] t) => (float[n] y) { y = Div(x, t) }"""
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
model = onnx.parser.parse_model(MODEL).SerializeToString()
print("onnxruntime-openvino", onnxruntime.__version__)
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER])
x, t = np.array([1e-2], np.float32), np.array([1e-39], np.float32)
(came,) = session.run(None, {"x": x, "t": t})
print("expected", x / t)
print("came    ", came)
sys.exit(0 if np.isinf(came).any() else 1)

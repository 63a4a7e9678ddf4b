"""Softmax of a row with a NaN is 0 everywhere else.

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: a NaN goes unnoticed where its own place is not read
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
g (float[n] x) => (float[n] y) { y = Softmax(x) }"""
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
model = onnx.parser.parse_model(MODEL).SerializeToString()
print("onnxruntime-openvino", onnxruntime.__version__)
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER])
(came,) = session.run(None, {"x": np.array([1, np.nan, 2], np.float32)})
print("expected", [np.nan] * 3)
print("came    ", came.tolist())
sys.exit(0 if not np.isnan(came).all() else 1)

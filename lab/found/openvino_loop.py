"""A Loop whose body reads a value from outside is claimed, and then cannot be compiled.

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: a model does not load, though the CPU would take the node
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
g (float[2] x, float[2] w) => (float[2] y) <int64 n = {3}, bool go = {1}> {
  y = Loop<body = step (int64 i, bool on, float[2] sum) => (bool more, float[2] after) {
    more = Identity(on)  after = Add(sum, w) }>(n, go, x)
}"""
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
model = onnx.parser.parse_model(MODEL).SerializeToString()
print("onnxruntime-openvino", onnxruntime.__version__)
try:
    session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER])
    print("came    ", session.run(None, {"x": np.ones(2, np.float32), "w": np.ones(2, np.float32)})[0])
except Exception as error:
    print("expected [4. 4.]")
    print("came    ", str(error).strip().splitlines()[-1])
    sys.exit(0)
sys.exit(1)

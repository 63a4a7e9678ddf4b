"""What stands before and behind a node that it does not take is claimed as one node, which then reads its own result:
"the graph is not acyclic".

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: a model does not load, though the CPU would take the node in the middle
workaround: none, only judged by the adapter ort
thread: none found
shown: 1.24.1
right: none
"""

import sys

import numpy as np

try:
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
g (float x) => (float[1] y) <int64[1] axis = {0}, float zero = {0}>
{ u = Unsqueeze(x, axis)  missing = IsNaN(u)  y = Where(missing, zero, u) }"""
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
print("onnxruntime-openvino", onnxruntime.__version__)
try:
    session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
    came = session.run(None, {"x": np.array(3, np.float32)})[0].tolist()
except Exception as error:
    came = str(error)
print("expected", [3.0])
print("came    ", came)
sys.exit(0 if came != [3.0] else 1)

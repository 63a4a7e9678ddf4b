"""Any op on an empty tensor is an error: a data pointer that is null is refused, and Reshape knows no extent of 0, also with allowzero.

project: nxrt-ep-cpu
needs: nxrt-ep-cpu
effect: an empty batch ends a request
workaround: none, only judged by the adapter ort
thread: none found
shown: 0.1.0.dev6
right: none
"""

import sys

try:
    import numpy as np
    import nxrt_ep_cpu
    import onnx.parser
    import onnxruntime
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

MODELS = (
    "g (float[0, 1] x) => (float[0, 1] y) { y = Neg(x) }",
    "g (float[0, 1] x) => (float[1, 0] y) <int64[2] s = {1, 0}> { y = Reshape<allowzero = 1>(x, s) }",
)

print("nxrt-ep-cpu", nxrt_ep_cpu.__version__, "in ONNX Runtime", onnxruntime.__version__)
onnxruntime.register_execution_provider_library("nxrt", nxrt_ep_cpu.get_library_path())
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "cpu_ep"]
wrong = 0
for model in MODELS:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices[:1], {})
    text = '<ir_version: 10, opset_import: ["": 20]>\n' + model
    try:
        session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), options)
        came = str(session.run(None, {"x": np.ones((0, 1), np.float32)})[0].ravel().tolist())
    except Exception as error:  # onnxruntime's errors share no base class
        came = str(error)
    print("expected []")
    print("came    ", came)
    wrong += came != "[]"
sys.exit(0 if wrong else 1)

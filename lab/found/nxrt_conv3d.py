"""A Conv of three dimensions is claimed, and then fails to compile: only those of one and two have a kernel.

project: nxrt-ep-cpu
needs: nxrt-ep-cpu
effect: models of volumes do not load, though the CPU would take the node
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

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[1, 1, 3, 3, 3] x, float[1, 1, 2, 2, 2] w) => (float[1, 1, 2, 2, 2] y) { y = Conv(x, w) }"""

print("nxrt-ep-cpu", nxrt_ep_cpu.__version__, "in ONNX Runtime", onnxruntime.__version__)
onnxruntime.register_execution_provider_library("nxrt", nxrt_ep_cpu.get_library_path())
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "cpu_ep"]
options.add_provider_for_devices(devices[:1], {})
x, w = np.ones((1, 1, 3, 3, 3), np.float32), np.ones((1, 1, 2, 2, 2), np.float32)
try:
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString(), options)
    came = str(session.run(None, {"x": x, "w": w})[0].ravel().tolist())
except Exception as error:  # onnxruntime's errors share no base class
    came = str(error)
print("expected", [8.0] * 8)
print("came    ", came)
sys.exit(0 if came != str([8.0] * 8) else 1)

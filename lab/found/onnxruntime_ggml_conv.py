"""A Conv of two or three dimensions is claimed, and then fails as one of one dimension, with `kernel_shape` and without.

project: onnxruntime-ggml
needs: onnxruntime-ggml
effect: models of images do not run, though the CPU would take the node
workaround: none, only judged by the adapter ort
thread: none found
shown: 0.2.0
right: none
"""

import os
import subprocess
import sys

try:
    import numpy as np
    import onnx.parser
    import onnxruntime
    import onnxruntime_ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[1, 1, 3, 3] x, float[1, 1, 2, 2] w) => (float[1, 1, 2, 2] y) { y = Conv<kernel_shape = [2, 2]>(x, w) }"""


def attempt() -> None:
    onnxruntime.register_execution_provider_library("ggml", onnxruntime_ggml.library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "ggml"]
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString(), options)
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 2, 2), np.float32)
    print(session.run(None, {"x": x, "w": w})[0].ravel().tolist())


if sys.argv[1:]:
    attempt()
else:
    print("onnxruntime-ggml", onnxruntime_ggml.__version__, "in ONNX Runtime", onnxruntime.__version__)
    quiet = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    child = subprocess.run(
        [sys.executable, __file__, "child"], env=quiet, capture_output=True, text=True, check=False
    )
    came = (
        child.stdout.strip().rpartition("\n")[2]
        if child.returncode == 0
        else f"the process ended with {child.returncode}"
    )
    print("expected [4.0, 4.0, 4.0, 4.0]")
    print("came    ", came)
    sys.exit(0 if came != "[4.0, 4.0, 4.0, 4.0]" else 1)

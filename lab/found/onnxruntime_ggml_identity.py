"""The second run of a session with an Identity of an input reads the memory of the first run's input: if it was freed, the
process ends with SIGSEGV.

project: onnxruntime-ggml
needs: onnxruntime-ggml
effect: the second request ends the process
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
g (float[n] x) => (float[n] y) { y = Identity(x) }"""


def attempt() -> None:
    onnxruntime.register_execution_provider_library("ggml", onnxruntime_ggml.library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "ggml"]
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString(), options)
    for value in (1, 2):
        x = np.full(1 << 24, value, np.float32)
        y = session.run(None, {"x": x})[0]
        print(y[0])
        del x, y


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
    print("expected 2.0")
    print("came    ", came)
    sys.exit(0 if came != "2.0" else 1)

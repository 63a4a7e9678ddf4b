"""The second run of a session reads the memory of the first run's input, where a node passes the input on: an Identity, an
Unsqueeze, a Cast or Expand that changes nothing, a ScatterND. If this memory was freed, the process ends with SIGSEGV.

project: onnxruntime-ggml
needs: onnxruntime-ggml
effect: the second request ends the process
workaround: none, only judged by the adapter ort
thread: none found
shown: 0.2.0
right: none
"""

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

MODELS = {
    "Identity": "g (float[n] x) => (float[n] y) { y = Identity(x) }",
    "ScatterND": """g (float[n] x) => (float[n] y) <int64[1, 1] places = {0}, float[1] values = {0}>
{ y = ScatterND(x, places, values) }""",
}


def attempt(text: str) -> None:
    onnxruntime.register_execution_provider_library("ggml", onnxruntime_ggml.library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "ggml"]
    options.add_provider_for_devices(devices[:1], {})
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}').SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    for value in (1, 2):
        x = np.full(1 << 24, value, np.float32)
        y = session.run(None, {"x": x})[0]
        print(y[1])
        del x, y


if sys.argv[1:]:
    attempt(MODELS[sys.argv[1]])
else:
    print("onnxruntime-ggml", onnxruntime_ggml.__version__, "in ONNX Runtime", onnxruntime.__version__)
    came = {}
    for name in MODELS:
        child = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=False)
        ended = f"the process ended with {child.returncode}"
        came[name] = ended if child.returncode else child.stdout.split()[-1]
    print("expected", dict.fromkeys(MODELS, "2.0"))
    print("came    ", came)
    sys.exit(0 if "2.0" not in came.values() else 1)

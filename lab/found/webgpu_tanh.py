"""tanh of small numbers has an error of 2e-6 of the result: WGSL lets a driver compute it from exponentials, and
ONNX Runtime takes it.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: 5 of the 24 bits are lost, more the smaller the number
workaround: plugins/onnx/src/backbay_onnx/session/providers.py: left_to_cpu
thread: none found
shown: 1.27.0
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

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Tanh(x) }'
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
x = np.array([-0.0288858376], np.float32)
(came,) = session.run(None, {"x": x})
print("expected", np.tanh(x))
print("came    ", came)
sys.exit(0 if abs(came[0] - np.tanh(x[0])) > 1e-8 else 1)

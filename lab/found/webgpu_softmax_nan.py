"""Softmax of a row with a NaN is 0 everywhere.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: a NaN goes unnoticed, and the weights do not add up to 1
workaround: none, plugins/onnx/known-failures-webgpu.txt names it
thread: https://github.com/microsoft/onnxruntime/pull/24855
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

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[m, n] x) => (float[m, n] y) { y = Softmax(x) }'
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
(came,) = session.run(None, {"x": np.array([[1, np.nan, 3]], np.float32)})
print("expected [[nan nan nan]]")
print("came    ", came)
sys.exit(0 if not came.any() else 1)

"""LayerNormalization of [10002, 10000] is +-316, not +-1: the shader subtracts the square of the mean from
the mean of the squares, which leaves no digits.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: wrong features wherever the mean of a row is much larger than its spread
workaround: plugins/onnx/src/backbay_onnx/ops/norm.py: subtract_mean
thread: https://github.com/microsoft/onnxruntime/pull/28743
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

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[m, n] x, float[n] weight) => (float[m, n] y) { y = LayerNormalization(x, weight) }"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
x = np.array([[10002, 10000]], np.float32)
(came,) = session.run(None, {"x": x, "weight": np.ones(2, np.float32)})
print("expected [[ 1. -1.]], to 1e-5")
print("came    ", came)
sys.exit(0 if abs(came[0, 0] - 1) > 1e-3 else 1)

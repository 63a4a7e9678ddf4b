"""MatMul of no terms, an inner extent of 0, is an error: the provider binds a buffer that was never made.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: a model fails over an empty operand; the result would be zeros
workaround: plugins/onnx/src/backbay_onnx/ops/matrix.py: a product of no terms
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

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[m, k] x, float[k, n] w) => (float[m, n] y) { y = MatMul(x, w) }"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
print("expected [[0. 0. 0.] [0. 0. 0.]]")
try:
    feeds = {"x": np.zeros((2, 0), np.float32), "w": np.zeros((0, 3), np.float32)}
    print("came    ", *session.run(None, feeds)[0])
except Exception as error:
    print("came    ", type(error).__name__, error)
    sys.exit(0)
sys.exit(1)

"""Softmax of no rows is an error, and Softmax of rows of nothing ends the process (SIGFPE). ONNX Runtime's CPU takes both.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: models that come across an empty tensor fail
workaround: plugins/onnx/src/backbay_onnx/ops/norm.py: softmax
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

MODEL = """<ir_version: 9, opset_import: ["": 18]>
g (float[M, N] x) => (float[M, N] y) { y = Softmax(x) }"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
print("expected an array of (0, 7)")
try:
    came = session.run(None, {"x": np.zeros((0, 7), np.float32)})
except Exception as error:
    print("came    ", str(error)[:200])
    sys.exit(0)
print("came     an array of", came[0].shape)
sys.exit(1)

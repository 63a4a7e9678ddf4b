"""TopK of a tensor without rows is an error: the provider starts no threads for it, and refuses to.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: a model fails over a batch that is empty
workaround: plugins/onnx/src/backbay_onnx/ops/order.py: of ONNX Runtime die
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

MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[m, n] x) => (float[m, k] y, int64[m, k] i)
{ two = Constant<value_ints = [2]>()  y, i = TopK(x, two) }"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
print("expected (0, 2)")
try:
    print("came    ", session.run(None, {"x": np.zeros((0, 3), np.float32)})[0].shape)
except Exception as error:
    print("came    ", type(error).__name__, error)
    sys.exit(0)
sys.exit(1)

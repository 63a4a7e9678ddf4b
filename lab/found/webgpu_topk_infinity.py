"""TopK, ascending, of a row with an infinity gives 3.4e38 and position -1 in its place: unused places of
the sort are filled with the largest number, which counts as less than infinity.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: an id of -1, which other ops take for the last row
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

MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[m, n] x) => (float[m, k] y, int64[m, k] i)
{ three = Constant<value_ints = [3]>()  y, i = TopK<largest = 0>(x, three) }"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
y, i = session.run(None, {"x": np.array([[1, np.inf, 2]], np.float32)})
print("expected [[ 1.  2. inf]] [[0 2 1]]")
print("came    ", y, i)
sys.exit(0 if i[0, 2] == -1 else 1)

"""Conv over 6 or 9 channels is wrong if the number of outputs is a multiple of 4 and the kernel has more than one place:
the shader reads channels by threes, at places that are meant for fours.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver, such as Mesa's lavapipe
effect: wrong features of pictures with several planes, with no message
workaround: plugins/onnx/src/backbay_onnx/session/providers.py: left_to_cpu
thread: https://github.com/microsoft/onnxruntime/issues/29651
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
g (float[1, 6, 1, 3] x, float[4, 6, 1, 2] w) => (float[1, 4, 1, 2] y) { y = Conv(x, w) }"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
x, w = (
    np.arange(18, dtype=np.float32).reshape(1, 6, 1, 3),
    np.arange(48, dtype=np.float32).reshape(4, 6, 1, 2),
)
(came,) = session.run(None, {"x": x, "w": w})
expected = sum(np.einsum("nchp,ochq->noh", x[..., [place]], w[..., [place]]) for place in range(2))
print("expected", expected.ravel(), "in the first place")
print("came    ", came[..., 0].ravel())
sys.exit(0 if abs(came[..., 0] - expected).max() > 1e-2 else 1)

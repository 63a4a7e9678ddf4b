"""MultiHeadAttention of several queries is wrong on a device whose subgroups have four invocations, as SwiftShader's: its
shader of flash attention asks its neighbours in a subgroup for scores of more keys than it has neighbours.

project: ONNX Runtime on WebGPU
needs: onnxruntime-webgpu and a Vulkan driver with subgroups of four, such as SwiftShader
effect: wrong attention, with no message
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

MODEL = """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
g (float[1, 2, 16] q, float[1, 7, 16] k, float[1, 7, 16] v) => (float[1, 2, 16] y) {
    y = com.microsoft.MultiHeadAttention <num_heads = 1, scale = 1.0> (q, k, v)
}"""
PROVIDER = "WebGpuExecutionProvider"
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
model = onnx.parser.parse_model(MODEL).SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=[PROVIDER, "CPUExecutionProvider"])
if PROVIDER not in session.get_providers():
    print("not installed: onnxruntime-webgpu, or a driver for it")
    sys.exit(77)

print("onnxruntime-webgpu", onnxruntime.__version__)
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, count, 16)).astype(np.float32) for count in (2, 7, 7))
(came,) = session.run(None, {"q": q, "k": k, "v": v})
weights = np.exp(q[0] @ k[0].T)
expected = weights / weights.sum(axis=1, keepdims=True) @ v[0]
print("expected", expected[0, :4], "in the first places")
print("came    ", came[0, 0, :4])
sys.exit(0 if abs(came[0] - expected).max() > 1e-3 else 1)

"""Elu of -1e-8 is 0: the kernel computes exp(x) - 1, which rounds to 0 for small x. Selu and Celu do the
same.

project: ONNX Runtime
effect: small negative activations vanish
workaround: none, no op of ours uses it
thread: none found
shown: 1.20.1, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1, 1.32.0
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

print("ONNX Runtime", onnxruntime.__version__)
MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Elu(x) }'
session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
x = np.array([-1e-8, -1e-7, -1e-6], np.float32)
(came,) = session.run(None, {"x": x})
print("expected", np.expm1(x))
print("came    ", came)
sys.exit(0 if came[0] == 0 else 1)

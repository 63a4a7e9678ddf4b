"""A product behind a Transpose and a Cast reads outside of its memory: the optimizer merges the Transpose
into FusedMatMul, though the rank of the other operand is only known when it runs.

project: ONNX Runtime
effect: attention over float16 caches ends the process with SIGSEGV
workaround: plugins/onnx/src/backbay_onnx/session/session.py: MatmulTransposeFusion
thread: none found
shown: 1.20.1, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1, 1.32.0
right: none
"""

import subprocess
import sys

try:
    import numpy as np
    import onnx.parser
    import onnxruntime
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

MODEL = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
g (float16[a, b, c, d] x, float[e] w, int64[k] shape) => (float[f, g, h, i] y) {
  rows = Reshape(w, shape)  turned = Transpose<perm = [1, 2, 3, 0]>(x)  floats = Cast<to = 1>(turned)
  y = com.microsoft.FusedMatMul<transB = 1>(rows, floats)
}"""


def attempt() -> None:
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
    shape = np.array([2, 2, 4, 257])
    feeds = {
        "x": np.ones((257, 2, 2, 32), np.float16),
        "w": np.ones(shape.prod(), np.float32),
        "shape": shape,
    }
    print(session.run(None, feeds)[0].shape)


if sys.argv[1:]:
    attempt()
else:
    print("ONNX Runtime", onnxruntime.__version__)
    child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=False)
    print("expected (2, 2, 4, 32)")
    print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
    sys.exit(0 if child.returncode < 0 else 1)

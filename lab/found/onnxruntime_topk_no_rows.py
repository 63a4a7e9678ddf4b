"""TopK of a tensor without rows ends the process with SIGFPE, a division by 0.

project: ONNX Runtime
effect: an expert, or a batch, that gets no token kills the server
workaround: none, the reason to install 1.31 or later
thread: none found
shown: 1.20.1, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0
right: 1.31.0, 1.31.1, 1.32.0
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

MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[m, n] x) => (float[m, k] y, int64[m, k] i)
{ two = Constant<value_ints = [2]>()  y, i = TopK(x, two) }"""


def attempt() -> None:
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
    print(session.run(None, {"x": np.zeros((0, 4), np.float32)})[0].shape)


if sys.argv[1:]:
    attempt()
else:
    print("ONNX Runtime", onnxruntime.__version__)
    child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=False)
    print("expected (0, 2)")
    print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
    sys.exit(0 if child.returncode < 0 else 1)

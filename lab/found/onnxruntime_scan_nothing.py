"""A Scan over no steps ends the process with SIGFPE, a division by 0, if a result has its steps on another
axis than the first; with all steps on the first axis it is an error.

project: ONNX Runtime
effect: a recurrent model kills the process over an empty prompt
workaround: plugins/onnx/src/backbay_onnx/ops/sequence.py: ssm_scan
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

MODEL = """<ir_version: 10, opset_import: ["": 21]> g (float[n] start, float[n, t] x)
=> (float[n] last, float[n, t] y) {
  last, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                 body = step (float[n] sum, float[n] now) => (float[n] after, float[n] out) {
                   after = Add(sum, now)  out = Identity(after) }>(start, x)
}"""


def attempt() -> None:
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
    feeds = {"start": np.ones(2, np.float32), "x": np.zeros((2, 0), np.float32)}
    print(session.run(None, feeds)[1].shape)


if sys.argv[1:]:
    attempt()
else:
    print("ONNX Runtime", onnxruntime.__version__)
    child = subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True, check=False)
    print("expected (2, 0)")
    print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
    sys.exit(0 if child.returncode < 0 else 1)

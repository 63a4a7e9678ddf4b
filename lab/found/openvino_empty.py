"""Expand of a tensor without elements behind another node ends the process: SIGFPE, a division by zero.

project: ONNX Runtime on OpenVINO
needs: onnxruntime-openvino
effect: the process ends where an empty batch should give an empty result
workaround: none, only judged by the adapter ort
thread: none found
shown: 1.24.1
right: none
"""

import multiprocessing
import sys

try:
    import numpy as np
    import onnx.parser
    import onnxruntime
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,1,0] x) => (float[1,3,0] y) <int64[3] shape = {1,3,0}> { z = Neg(x)  y = Expand(z, shape) }"""
PROVIDER = "OpenVINOExecutionProvider"


def run() -> None:
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=[PROVIDER, "CPUExecutionProvider"])
    session.run(None, {"x": np.zeros((1, 1, 0), np.float32)})


if PROVIDER not in onnxruntime.get_available_providers():
    print("not installed: onnxruntime-openvino")
    sys.exit(77)

if __name__ == "__main__":
    print("onnxruntime-openvino", onnxruntime.__version__)
    child = multiprocessing.get_context("spawn").Process(target=run)
    child.start()
    child.join()
    print("expected exit status 0")
    print("came    ", child.exitcode)
    sys.exit(0 if child.exitcode else 1)

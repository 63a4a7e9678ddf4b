"""A forked child of a process with a session never ends: at its exit, ONNX Runtime waits for threads that
only the parent has.

project: ONNX Runtime
timing: the threads of the parent sleep when it forks
effect: multiprocessing with the fork method hangs
workaround: plugins/onnx/src/backbay_onnx/session/runtime.py: ChildExitHook
thread: https://github.com/microsoft/onnxruntime/pull/31961
shown: 1.29.0, 1.30.0, 1.31.1, 1.32.0
right: 1.20.1, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0
"""

import os
import signal
import subprocess
import sys

try:
    import numpy as np
    import onnx.parser
    import onnxruntime
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x) => (float[n] y) { y = Neg(x) }'


def attempt() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString(), options)
    session.run(None, {"x": np.ones(4, np.float32)})
    if (child := os.fork()) == 0:
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(3 if status else 0)


if sys.argv[1:]:
    attempt()
print("ONNX Runtime", onnxruntime.__version__)
print("expected the child ends, with status 0")
for _ in range(5):  # now and then, on a busy machine, the child ends
    parent = subprocess.Popen([sys.executable, __file__, "parent"], start_new_session=True)
    try:
        status = parent.wait(timeout=5)
    except subprocess.TimeoutExpired:
        print("came     the child still runs after 5 s")
        os.killpg(parent.pid, signal.SIGKILL)
        sys.exit(0)
    if status:
        print("came     the child ended with another status")
        sys.exit(0 if status == 3 else 2)
print("came     the child ended, five times")
sys.exit(1)

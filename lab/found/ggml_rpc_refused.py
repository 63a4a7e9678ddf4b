"""A refused connection to an RPC server ends the process, where older versions return NULL.

project: ggml
needs: ggml-python that is built with -DGGML_RPC=ON
effect: one wrong address, or one server that is down, kills the program
workaround: plugins/ggml/src/backbay_ggml/devices/rpc_relay.py: class RpcRelay
thread: https://github.com/ggml-org/llama.cpp/pull/26724
shown: 0.25.3
right: 0.15.3
"""

import os
import subprocess
import sys

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)


def attempt() -> None:
    print("registry", ggml.ggml_backend_rpc_add_server(b"127.0.0.1:1"))  # nobody listens there


if not ggml.GGML_USE_RPC:
    print("not installed: a ggml with RPC")
    sys.exit(77)
if sys.argv[1:]:
    attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected registry None")
print("came    ", child.stdout.strip() or f"the process ended with {child.returncode}")
sys.exit(0 if child.returncode < 0 else 1)

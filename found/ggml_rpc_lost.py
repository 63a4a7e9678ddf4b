"""A lost RPC server ends the process that uses it: every failed answer is an abort, not an error.

project: ggml
effect: one server that dies kills all its clients
workaround: plugins/ggml/src/backbay_ggml/devices/rpc_relay.py: class LostError
thread: https://github.com/ggml-org/llama.cpp/issues/25938
shown: 0.15.3, 0.25.3
right: none
"""

import ctypes
import os
import socket
import subprocess
import sys
import time

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)

PORT = 20000 + os.getpid() % 20000
ADDRESS = f"127.0.0.1:{PORT}"


def serve(address: str) -> None:
    ctypes.CDLL(None).prctl(1, 9)  # Linux ends the server with its parent
    cpu = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(ggml.GGML_BACKEND_DEVICE_TYPE_CPU))
    ggml.ggml_backend_rpc_start_server(address.encode(), None, 1, 1, cpu)


def wait() -> None:
    for _ in range(300):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", PORT)) == 0:
                return
        time.sleep(0.1)


def attempt() -> None:
    with subprocess.Popen([sys.executable, __file__, "serve", ADDRESS], stdout=subprocess.DEVNULL) as server:
        wait()
        buffer_type = ggml.ggml_backend_rpc_buffer_type(ADDRESS.encode(), 0)
        buffer = ggml.ggml_backend_buft_alloc_buffer(buffer_type, 1024)
        print("connected", bool(buffer), flush=True)
        server.kill()
    ggml.ggml_backend_buffer_clear(buffer, 0)
    print("the process goes on")


if not ggml.GGML_USE_RPC:
    print("not installed: a ggml with RPC")
    sys.exit(77)
if sys.argv[1:]:
    serve(sys.argv[2]) if sys.argv[1] == "serve" else attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected the process goes on")
print("came    ", child.stdout.strip().splitlines()[-1], child.returncode)
sys.exit(0 if child.returncode < 0 else 1)

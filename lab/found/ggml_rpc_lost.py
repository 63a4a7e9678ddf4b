"""A lost RPC server ends the process that uses it: every failed answer is an abort, not an error.

project: ggml
needs: ggml-python that is built with -DGGML_RPC=ON
effect: one server that dies kills all its clients
workaround: plugins/ggml/src/backbay_ggml/devices/rpc_relay.py: class ServerLostError
thread: https://github.com/ggml-org/llama.cpp/issues/25938
shown: 0.15.3, 0.25.3
right: none
"""

import ctypes
import os
import signal
import socket
import sys
import time

try:
    import ggml
except ImportError as error:
    print(f"not installed: {error.name}")
    sys.exit(77)
if not ggml.GGML_USE_RPC:
    print("not installed: a ggml with RPC")
    sys.exit(77)

print("ggml", ggml.ggml_version().decode(), flush=True)
os.environ["GGML_NO_BACKTRACE"] = "1"
PORT = 20000 + os.getpid() % 20000
ADDRESS = f"127.0.0.1:{PORT}".encode()

if (server := os.fork()) == 0:
    cpu = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(ggml.GGML_BACKEND_DEVICE_TYPE_CPU))
    os.dup2(2, 1)
    ggml.ggml_backend_rpc_start_server(ADDRESS, None, 1, 1, cpu)
while socket.socket().connect_ex(("127.0.0.1", PORT)):
    time.sleep(0.1)

if (child := os.fork()) == 0:
    buffer = ggml.ggml_backend_buft_alloc_buffer(ggml.ggml_backend_rpc_buffer_type(ADDRESS, 0), 1024)
    os.kill(server, signal.SIGKILL)
    ggml.ggml_backend_buffer_clear(buffer, 0)
    os._exit(0)
_, status = os.waitpid(child, 0)
os.kill(server, signal.SIGKILL)
print("expected the process goes on")
print("came    ", f"it ended with signal {status}" if status else "it goes on")
sys.exit(0 if status else 1)

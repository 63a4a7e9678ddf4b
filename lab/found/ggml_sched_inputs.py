"""The scheduler ends the process if an op with two operands brings a 30th and a 31st input from other
devices: before an op it asks whether 30 are reached, not whether the op's operands fit.

project: ggml
needs: ggml-python that is built with -DGGML_RPC=ON
effect: a graph that is spread over devices ends the process
workaround: plugins/ggml/src/backbay_ggml/devices/op_placer.py: MOST_INPUTS
thread: https://github.com/ggml-org/llama.cpp/issues/24657
shown: 0.15.3
right: 0.25.3
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
    remote, here = ggml.ggml_backend_rpc_init(ADDRESS, 0), ggml.ggml_backend_cpu_init()
    scheduler = ggml.ggml_backend_sched_new((ctypes.c_void_p * 2)(remote, here), None, 2, 4096, False, False)
    ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, True))
    graph = ggml.ggml_new_graph(ctx)
    leaves = [ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_F32, 4) for _ in range(31)]
    inputs = [ggml.ggml_neg(ctx, leaf) for leaf in leaves]
    ops = [ggml.ggml_neg(ctx, inputs[0]), *(ggml.ggml_add(ctx, *inputs[n : n + 2]) for n in range(1, 31, 2))]
    for backend, tensors in ((here, inputs), (remote, ops)):
        for tensor in tensors:
            ggml.ggml_build_forward_expand(graph, tensor)
            ggml.ggml_backend_sched_set_tensor_backend(scheduler, tensor, backend)
    ggml.ggml_backend_sched_alloc_graph(scheduler, graph)
    os._exit(0)
_, status = os.waitpid(child, 0)
os.kill(server, signal.SIGKILL)
print("expected the process goes on")
print("came    ", f"it ended with signal {status}" if status else "it goes on")
sys.exit(0 if status else 1)

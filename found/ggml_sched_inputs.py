"""The scheduler ends the process if an op with two operands brings a 30th and a 31st input from other devices: before an
op it asks whether 30 are reached, not whether the op's operands fit.

project: ggml
effect: a graph that is spread over devices ends the process
workaround: plugins/ggml/src/backbay_ggml/devices/op_placement.py: MOST_INPUTS
thread: https://github.com/ggml-org/llama.cpp/issues/24657
shown: 0.15.3
right: 0.25.3
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
        remote, cpu = ggml.ggml_backend_rpc_init(ADDRESS.encode(), 0), ggml.ggml_backend_cpu_init()
        ctx = ggml.ggml_init(ggml.ggml_init_params(1 << 20, None, True))
        here = [ggml.ggml_neg(ctx, ggml.ggml_new_tensor_1d(ctx, ggml.GGML_TYPE_F32, 4)) for _ in range(31)]
        there = [ggml.ggml_neg(ctx, here[0])]
        there += [ggml.ggml_add(ctx, *here[n : n + 2]) for n in range(1, 31, 2)]
        graph = ggml.ggml_new_graph(ctx)
        for tensor in (*here, *there):
            ggml.ggml_build_forward_expand(graph, tensor)
        backends = (ctypes.c_void_p * 2)(remote, cpu)
        scheduler = ggml.ggml_backend_sched_new(backends, None, 2, 4096, False, False)
        for tensor in (*here, *there):
            backend = remote if any(tensor is each for each in there) else cpu
            ggml.ggml_backend_sched_set_tensor_backend(scheduler, tensor, backend)
        print("connected", flush=True)
        try:
            print(ggml.ggml_backend_sched_alloc_graph(scheduler, graph))
        finally:
            server.kill()


if not ggml.GGML_USE_RPC:
    print("not installed: a ggml with RPC")
    sys.exit(77)
if sys.argv[1:]:
    serve(sys.argv[2]) if sys.argv[1] == "serve" else attempt()
    sys.exit(0)
print("ggml", ggml.ggml_version().decode())
command, quiet = [sys.executable, __file__, "child"], {**os.environ, "GGML_NO_BACKTRACE": "1"}
child = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
print("expected True")
print("came    ", child.stdout.strip().splitlines()[-1], child.returncode)
sys.exit(0 if child.returncode < 0 else 1)

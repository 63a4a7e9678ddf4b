"""`python -m backbay_ggml.rpc_server` lends this machine's CPU to backbay-ggml in another process, by ggml's RPC.

    python -m backbay_ggml.rpc_server 127.0.0.1:50052 --threads 2

ggml's RPC has no passwords: anybody who reaches the port can read and write this process's memory. So it listens on the
loopback interface only.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import sys
import threading
from pathlib import Path

from .devices.rpc_servers import parse_endpoints, rpc_function
from .library.abi import NULL, ffi
from .library.library import load_library


def main() -> int:
    """Serve until the process is killed, or with --until-eof until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m backbay_ggml.rpc_server", description=__doc__)
    parser.add_argument("endpoint", help="where to listen, such as 127.0.0.1:50052")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--devices", type=int, default=1, help="how many devices to show, all of them the CPU (1)"
    )
    parser.add_argument(
        "--memory", type=int, help="bytes that may be allocated beyond what starting takes (Linux)"
    )
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    options = parser.parse_args()
    (endpoint,) = parse_endpoints(options.endpoint)
    if not ipaddress.ip_address(endpoint.rpartition(":")[0]).is_loopback:
        parser.error(f"{endpoint} is not on the loopback interface; elsewhere ggml's RPC is not safe")
    library = load_library()
    start = ffi.cast(
        "void (*)(const char *, const char *, size_t, size_t, ggml_backend_dev_t *)",
        rpc_function(library, "ggml_backend_rpc_start_server"),
    )
    if options.until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    if options.memory is not None:
        _limit(options.memory)
    # Python's own handler would wait for ggml, which never returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    devices = ffi.new("ggml_backend_dev_t[]", [library.cpu] * options.devices)
    start(endpoint.encode(), NULL, options.threads, options.devices, devices)
    return 1  # it returns only if it cannot listen


def _end_with_input() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


def _limit(more: int) -> None:
    if sys.platform != "linux":
        sys.exit("--memory needs Linux: elsewhere the system limits no address space")
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


if __name__ == "__main__":
    sys.exit(main())

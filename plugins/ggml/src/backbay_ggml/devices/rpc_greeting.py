"""A child process that greets an RPC server, and exits with 0 if the server has devices."""

from __future__ import annotations

import sys

from ..library.abi import NULL, ffi
from ..library.library import load_library
from .rpc_servers import rpc_function


def main() -> int:
    """Let ggml greet the server, which may end the process."""
    address = rpc_function(load_library(), "ggml_backend_rpc_add_server")
    add_server = ffi.cast("ggml_backend_reg_t (*)(const char *)", address)
    return 0 if add_server(sys.argv[1].encode()) != NULL else 1


if __name__ == "__main__":
    sys.exit(main())

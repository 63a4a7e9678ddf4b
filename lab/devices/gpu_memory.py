"""Where a model lies on a GPU, beside what NVIDIA's driver counts: freely, within two thirds of that, and beside a full device.

    python lab/devices/gpu_memory.py one_b.q4_0.gguf ggml CUDA:0

Exit status 1 if a limit is exceeded, or does not leave layers on the CPU. Only CUDA's driver can be asked to fill a device.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from contextlib import closing
from pathlib import Path

from backbay import BackendParams
from backbay_engine import load

CONTEXT = 1024
MIB = 2**20


class HeldMemory:
    """Memory of the first NVIDIA GPU that leaves so many bytes to others."""

    def __init__(self, room: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._place, self.size = ctypes.c_uint64(), 0
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self.size = max(0, free.value - room)
        self._call("cuMemAlloc_v2", ctypes.byref(self._place), ctypes.c_size_t(self.size))

    def close(self) -> None:
        self._call("cuMemFree_v2", self._place)

    def _call(self, name: str, *args: object) -> None:
        if status := getattr(self._cuda, name)(*args):
            raise OSError(f"{name} gives {status}")


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("backend")
    parser.add_argument("device")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="    %(message)s")
    layers, there = placed(args, "all memory", BackendParams())
    limit = there * 2 // 3
    fewer, taken = placed(args, "two thirds of that", BackendParams(max_memory={args.device: limit}))
    try:
        held = HeldMemory(limit)
    except OSError as error:
        sys.stdout.write(f"no device was filled: {error}\n")
    else:
        with closing(held):
            placed(args, "beside a program that leaves as much", BackendParams())
    return 0 if taken <= limit and 0 < fewer < layers else 1


def placed(args: Namespace, name: str, params: BackendParams) -> tuple[int, int]:
    """The layers on the device, and the bytes that are reported there."""
    before = counted()
    with load(args.model, args.backend, context=CONTEXT, params=params) as llm:
        made = len(llm.generate("a", max_tokens=4).tokens)
        gpu = next(each for each in llm.memory().gpus if each.id == args.device)
        layers, total = sum(each.size > 0 for each in gpu.weights), gpu.total()
        sys.stdout.write(
            f"{name}: {layers} of {len(gpu.weights)} layers there, {total / MIB:.0f} MiB reported; the driver counted "
            f"{before} before and {counted()} with them; {made} tokens\n"
        )
    return layers, total


def counted() -> str:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "nothing"


if __name__ == "__main__":
    sys.exit(main())

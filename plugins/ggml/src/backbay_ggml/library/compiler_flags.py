"""The compiler flags and CMake options of a fast libggml; its sources stay unchanged.

requirements.txt repeats them for pip.
"""

from __future__ import annotations

COMMAND = "python -m backbay_ggml.rebuild"
# LLAMAFILE: kernels that halve the time of prompts. RPC: devices of servers.
OPTIONS = ("-DGGML_LLAMAFILE=ON", "-DGGML_RPC=ON")
# With AVX512-FP16, ggml sums products of f16 in f16: less exact, and several times slower on long texts.
ANY_COMPILER = ("-U__AVX512FP16__",)
GCC_ONLY = (
    # A step waits for memory. With these three, GCC prefetches about 4 KiB ahead in every loop over an array.
    "-fprefetch-loop-arrays",
    "--param=prefetch-latency=3000",
    "--param=simultaneous-prefetches=2000",
    # GCC 12 removes most of AMX's tile configuration as dead stores; the code then crashes.
    "-fno-dse",
    # The library records its flags, for `backbay doctor`.
    "-frecord-gcc-switches",
)
PREFETCH = GCC_ONLY[0]

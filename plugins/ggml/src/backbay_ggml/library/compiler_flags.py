"""How libggml is built so that it is fast. ggml's sources stay as they are, only the compiler is told more.

requirements.txt says the same to pip.
"""

from __future__ import annotations

COMMAND = "python -m backbay_ggml.rebuild"
# Kernels for prompts, without which they take twice as long, and servers.
OPTIONS = ("-DGGML_LLAMAFILE=ON", "-DGGML_RPC=ON")
# With AVX512-FP16, ggml sums products of f16 in f16: less exact, and attention to long texts is several times slower.
ANY = ("-U__AVX512FP16__",)
GCC = (
    # A step waits for memory. So told, GCC reads about 4 KiB ahead wherever a loop walks through an array.
    "-fprefetch-loop-arrays",
    "--param=prefetch-latency=3000",
    "--param=simultaneous-prefetches=2000",
    # GCC 12 takes most of AMX's tile configuration for dead stores, and its code for AMX crashes.
    "-fno-dse",
    # The library tells how it was built, which `backbay doctor` reads.
    "-frecord-gcc-switches",
)
READS_AHEAD = GCC[0]

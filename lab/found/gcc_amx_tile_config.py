"""GCC 12 removes the tile configuration of AMX as dead stores: _tile_loadconfig declares 8 bytes of it as
read, not 64. The instruction then loads random numbers, and the process ends.

project: GCC
needs: gcc for x86-64
effect: every program with AMX, such as ggml's default build, crashes at its first product
workaround: plugins/ggml/lib/CMakeLists.txt: -fno-dse
thread: https://github.com/ggml-org/llama.cpp/pull/26954
shown: 12.2.0
right: 13.3.0, 14.2.0
"""

import re
import shutil
import subprocess
import sys

PROGRAM = """
#include <immintrin.h>
struct config {
    unsigned char palette, start, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
};
void configure(void) {
    struct config all = { .palette = 1 };
    for (int tile = 0; tile < 8; tile++) { all.bytes[tile] = 64; all.rows[tile] = 16; }
    _tile_loadconfig(&all);
}
"""

if shutil.which("gcc") is None:
    print("not installed: gcc")
    sys.exit(77)
version = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
print("GCC", version.strip())
command = ["gcc", "-O3", "-mamx-tile", "-x", "c", "-S", "-o", "-", "-"]
made = subprocess.run(command, input=PROGRAM, capture_output=True, text=True, check=False)
if made.returncode:
    print("not installed: gcc for x86-64 with -mamx-tile")
    sys.exit(77)
stored = re.findall(r"^\s*mov\w*\s.*, ?-?\w*\(%rsp\).*$", made.stdout.partition("ldtilecfg")[0], re.MULTILINE)
print("expected at least 4 stores of 16 bytes before ldtilecfg")
print("came    ", len(stored))
sys.exit(0 if len(stored) < 4 else 1)

"""The tests of native backends and of the engine on them, with the code for one kind of CPU after the other.

`python lab/tools/test_cpus.py avx2 avx512 apps/engine/tests -x` tries two kinds, with folders and options for pytest. Kinds that this CPU
cannot run are told.
Where it has no AMX, that is emulated in backbay's native code, and so is VNNI for the vectors of AVX2. `--variants` prints those of ggml that the kinds need, for its build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "plugins/native/tests"))

from native_sources import EMULATED_AVX_VNNI, EMULATED_TILES, compiled, native_library  # noqa: E402

from backbay.types.cpu import KINDS, VARIABLE  # noqa: E402
from backbay_ggml.library.library import NAMES, NATIVE  # noqa: E402
from backbay_native import PRODUCTS, NativeCode  # noqa: E402
from backbay_native.native_code import INSTRUCTIONS, TILES  # noqa: E402
from backbay_onnx.session import native as onnx  # noqa: E402

TESTS = "plugins/ggml/tests", "plugins/native/tests", "plugins/onnx/tests", "apps/engine/tests"
EMULATED = {"avx2-vnni": EMULATED_AVX_VNNI, "amx": EMULATED_TILES}
ON_BACKENDS = "ggml or native or onnx"  # in the engine's tests; the plugins' folders are named so, too


def runnable(code: NativeCode) -> list[str]:
    """The kinds whose code this CPU runs; that of AMX on each CPU with VNNI."""
    instructions, best = list(INSTRUCTIONS.values()), code.instructions(PRODUCTS)
    return [kind for kind in KINDS if instructions.index(INSTRUCTIONS[kind]) <= instructions.index(best)]


def own_kind(code: NativeCode) -> str:
    return [kind for kind in runnable(code) if kind != "amx" or code.instructions(TILES)][-1]


def variants(code: NativeCode) -> list[str]:
    """ggml's names of the code for lesser CPUs than this one."""
    lesser = KINDS[: KINDS.index(own_kind(code))]
    return list(dict.fromkeys(NAMES[kind][-1] for kind in lesser))


def runs(kind: str, code: NativeCode) -> bool:
    """Whether this CPU runs native code for a kind that may be emulated."""
    if kind == "amx":
        return bool(code.instructions(TILES))
    ask = f"from backbay_native import NativeCode; print(NativeCode({str(code.path)!r}).instructions({PRODUCTS!r}))"
    command, variables = [sys.executable, "-c", ask], os.environ | {VARIABLE: kind}
    told = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    return told.stdout.strip() == INSTRUCTIONS[kind]


def environment(kind: str, code: NativeCode) -> dict[str, str]:
    """The variables for a kind."""
    if kind not in EMULATED or runs(kind, code):
        return {VARIABLE: kind}
    emulation = str(compiled(EMULATED[kind]))
    return {VARIABLE: kind, NATIVE: emulation, onnx.VARIABLE: emulation}


def main(arguments: list[str]) -> int:
    """Run the tests for the kinds that come first in the arguments; the rest is for pytest."""
    code = NativeCode(native_library())
    if arguments == ["--variants"]:
        print(";".join(["here", *variants(code)]))
        return 0
    kinds = [argument for argument in arguments if argument in KINDS]
    options, results = arguments[len(kinds) :], dict[str, str]()
    folders = () if any((ROOT / option).is_dir() for option in options) else TESTS
    command = [sys.executable, "-m", "pytest", "-n", "auto", *folders, "-k", ON_BACKENDS, *options]
    runs, own = runnable(code), own_kind(code)
    for kind in kinds:
        if kind not in runs:
            results[kind] = "not tried: this CPU cannot run it"
        elif kind == own:
            results[kind] = "this CPU's own: the other tests ran it"
        else:
            print(f"== {VARIABLE}={kind}", flush=True)
            done = subprocess.run(command, cwd=ROOT, env=os.environ | environment(kind, code), check=False)
            results[kind] = "passed" if done.returncode == 0 else "FAILED"
    for kind, result in results.items():
        print(f"{kind}: {result}")
    return int("FAILED" in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

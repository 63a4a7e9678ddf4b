"""`python -m backbay_ggml.rebuild` builds libggml again, for speed; arguments go to CMake, like `-DGGML_CUDA=ON`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata

from .library.compiler_flags import ANY_COMPILER, COMMAND, GCC_ONLY, OPTIONS

DESCRIPTION = "Build libggml again in this environment, from ggml-python's sources, in about a minute."


def flags() -> tuple[str, ...]:
    """The flags for this machine's C and C++ compilers."""
    if sys.platform == "win32":
        return ()
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"no C++ compiler: {shlex.join(compiler)} --version: {error}") from None
    return ANY_COMPILER if "clang" in version else ANY_COMPILER + GCC_ONLY


def settings(options: Sequence[str]) -> dict[str, str]:
    """Environment variables for pip. Values that are set already come last, so that they win."""
    added = dict.fromkeys(("CFLAGS", "CXXFLAGS"), flags()) | {"CMAKE_ARGS": (*OPTIONS, *options)}
    return {name: " ".join([*values, os.environ.get(name, "")]).strip() for name, values in added.items()}


def command() -> list[str]:
    """The call of pip: it builds the installed version from its sources."""
    try:
        which = f"ggml-python=={metadata.version('ggml-python')}"
    except metadata.PackageNotFoundError:
        which = "ggml-python"
    return [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--force-reinstall", "--no-deps", which]


def main(arguments: Sequence[str]) -> int:
    """Build and install the library, or show the command."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--show", action="store_true", help="print the command, and run nothing")
    parser.add_argument(
        "-D",
        action="append",
        default=[],
        dest="options",
        metavar="OPTION=VALUE",
        help="for CMake, as in -DGGML_CUDA=ON",
    )
    given = parser.parse_args(arguments)
    added, run = settings([f"-D{option}" for option in given.options]), command()
    shown = " ".join(
        [f"{name}={shlex.quote(value)}" for name, value in added.items() if value] + [shlex.join(run)]
    )
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()
    return 0 if given.show else subprocess.call(run, env=os.environ | added)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

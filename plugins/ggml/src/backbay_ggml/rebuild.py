"""`python -m backbay_ggml.rebuild` builds libggml anew, for speed; arguments go to CMake, like `-DGGML_CUDA=ON`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata

from .library.compiler_flags import ANY, COMMAND, GCC, OPTIONS

DESCRIPTION = "Build libggml anew in this environment, from ggml-python's sources, in about a minute."


def flags() -> tuple[str, ...]:
    """What the C and C++ compilers are told on this machine."""
    if sys.platform == "win32":
        return ()
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    try:
        told = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"no C++ compiler: {shlex.join(compiler)} --version: {error}") from None
    return ANY if "clang" in told else ANY + GCC


def settings(options: Sequence[str]) -> dict[str, str]:
    """What is added to the environment for pip; what was there comes last, and has the last word."""
    added = dict.fromkeys(("CFLAGS", "CXXFLAGS"), flags()) | {"CMAKE_ARGS": (*OPTIONS, *options)}
    return {name: " ".join([*values, os.environ.get(name, "")]).strip() for name, values in added.items()}


def command() -> list[str]:
    """How pip is called: for the version that is there, from its sources."""
    try:
        which = f"ggml-python=={metadata.version('ggml-python')}"
    except metadata.PackageNotFoundError:
        which = "ggml-python"
    return [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--force-reinstall", "--no-deps", which]


def main(arguments: Sequence[str]) -> int:
    """Build and install it, or show how."""
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
    asked = parser.parse_args(arguments)
    added, run = settings([f"-D{option}" for option in asked.options]), command()
    shown = " ".join(
        [f"{name}={shlex.quote(value)}" for name, value in added.items() if value] + [shlex.join(run)]
    )
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()
    return 0 if asked.show else subprocess.call(run, env=os.environ | added)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

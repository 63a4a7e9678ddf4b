"""`python -m backbay_ggml.rebuild` builds libggml again; arguments go to CMake, like `-DGGML_CUDA=ON`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution

from .library.location import INSTALL, OURS, REBUILD

REASON = re.compile(r"Could NOT find|: (fatal )?error: ")  # of CMake and of compilers
DESCRIPTION = f"Build {OURS} again in this environment, with further options of ggml."


def source_folder() -> str:
    """The folder that the installed package was built from."""
    try:
        origin = json.loads(distribution(OURS).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "dir_info" not in origin:
        sys.exit(f"{OURS} was not built from a folder; {INSTALL}")
    return str(origin["url"])


def cmake_options(given: Sequence[str]) -> str:
    """CMAKE_ARGS for the build. Values that are set already come last, so that they win."""
    return " ".join([*given, os.environ.get("CMAKE_ARGS", "")]).strip()


def build_command() -> list[str]:
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--force-reinstall", "--no-deps"]
    return [*pip, source_folder()]


def build(added: str) -> int:
    """Let pip build and install, and repeat at the end why it could not: its output is long."""
    reasons = []
    environment = os.environ | {"CMAKE_ARGS": added}
    with subprocess.Popen(
        build_command(), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            reasons += [line.strip()] if REASON.search(line) else []
    if pip.returncode:
        sys.stdout.write(f"\n{OURS} was not built, and what was installed before is as it was.\n")
        sys.stdout.writelines(f"  {reason}\n" for reason in dict.fromkeys(reasons[:5]))
    return pip.returncode


def main(arguments: Sequence[str]) -> int:
    """Build and install the library, or show the command."""
    parser = argparse.ArgumentParser(prog=REBUILD, description=DESCRIPTION, allow_abbrev=False)
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
    added = cmake_options([f"-D{option}" for option in given.options])
    sys.stdout.write(f"CMAKE_ARGS={shlex.quote(added)} {shlex.join(build_command())}\n")
    sys.stdout.flush()
    return 0 if given.show else build(added)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

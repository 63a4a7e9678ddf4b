"""Writes one version into all packages, and the bounds of those that need each other.

    python tools/versions.py 1.2.1      # for a release; major and minor are those of the contract

The version stands in core/pyproject.toml; all packages have the same. A package needs the others in the version of the
contract that it was written for, `backbay~=1.2`: additions to the contract break no plugin, so later minor versions serve.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "core",
    "plugins/cpu_ref",
    "plugins/ggml/lib",
    "plugins/ggml",
    "plugins/onnx",
    "conformance",
    "conformance/selftest",
    "engine",
    "server",
)
SIBLING = re.compile(r'"(backbay(?:-[a-z-]+)?)(?:~=[0-9.]+)?"(?=[,\]])')


def current() -> str:
    return tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]["version"]


def with_version(text: str, version: str) -> str:
    """A pyproject.toml with this version, and with siblings bound to its contract."""
    contract = ".".join(version.split(".")[:2])
    head, dependencies, rest = re.split(r"^(dependencies = \[.*\])$", text, maxsplit=1, flags=re.MULTILINE)
    head = re.sub(r'^version = ".*"$', f'version = "{version}"', head, flags=re.MULTILINE)
    return head + SIBLING.sub(rf'"\1~={contract}"', dependencies) + rest


def main() -> None:
    version = sys.argv[1]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"a version is three numbers, such as 1.2.0, got {version!r}")
    for package in PACKAGES:
        path = ROOT / package / "pyproject.toml"
        path.write_text(with_version(path.read_text(), version))


if __name__ == "__main__":
    main()

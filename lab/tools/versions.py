"""Writes one version and one address into all packages, and the bounds of those that need each other.

    python lab/tools/versions.py          # after the address has changed
    python lab/tools/versions.py 1.2.1    # for a release; major and minor are those of the contract

The version stands in core/pyproject.toml; all packages have the same. A package needs the others in the version of the
contract that it was written for, `backbay~=1.2`: additions to the contract break no plugin, so later minor versions serve.

The address is `source` of [tool.backbay] in the pyproject.toml of the workspace. While it is empty, README and packages
name none.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "core",
    "plugins/cpu_ref",
    "plugins/native",
    "plugins/ggml/lib",
    "plugins/ggml",
    "plugins/onnx",
    "plugins/torch",
    "plugins/jax",
    "conformance",
    "conformance/selftest",
    "apps/engine",
    "apps/server",
    "apps/ray",
)
SIBLING = re.compile(r'"(backbay(?:-[a-z-]+)?)(?:~=[0-9.]+)?"(?=[,\]])')


def current() -> str:
    return tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]["version"]


def source() -> str:
    """The address that backbay is cloned from; empty if there is none."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["backbay"]["source"]


def with_version(text: str, version: str) -> str:
    """A pyproject.toml with this version, and with siblings bound to its contract."""
    contract = ".".join(version.split(".")[:2])
    head, dependencies, rest = re.split(r"^(dependencies = \[.*\])$", text, maxsplit=1, flags=re.MULTILINE)
    head = re.sub(r'^version = ".*"$', f'version = "{version}"', head, flags=re.MULTILINE)
    return head + SIBLING.sub(rf'"\1~={contract}"', dependencies) + rest


def with_source(text: str, address: str) -> str:
    """A pyproject.toml with this address."""
    urls = f'urls = {{ Source = "{address}" }}\n' if address else ""
    return re.sub(r"^(dependencies = .*\n)(urls = .*\n)?", rf"\1{urls}", text, flags=re.MULTILINE)


def with_clone(readme: str, address: str) -> str:
    """README with the command that clones this address, before `make demo`."""
    clone = f"git clone {address} backbay && cd backbay\n" if address else ""
    return re.sub(r"^(git clone .*\n)?(?=make demo)", clone, readme, flags=re.MULTILINE)


def main() -> None:
    version = sys.argv[1] if sys.argv[1:] else current()
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"a version is three numbers, such as 1.2.0, got {version!r}")
    for package in PACKAGES:
        path = ROOT / package / "pyproject.toml"
        path.write_text(with_source(with_version(path.read_text(), version), source()))
    readme = ROOT / "README.md"
    readme.write_text(with_clone(readme.read_text(), source()))


if __name__ == "__main__":
    main()

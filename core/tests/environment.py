"""A Python environment of its own for a test: core, what core needs, and distributions that the test installs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

from patience import PATIENCE

GOOD = """
    import numpy as np
    from backbay import CONTRACT_VERSION, DeviceInfo, KernelBackend, KernelTable, hookimpl, ops

    kernel = KernelTable()

    @kernel(ops.mulmat)
    def mulmat(w, x):
        return np.matmul(x, np.swapaxes(w, -1, -2))

    class Good(KernelBackend):
        contract_version = CONTRACT_VERSION
        kernels = kernel

        @classmethod
        def diagnose(cls):
            return {"library": "none"}

    @hookimpl
    def backbay_backend():
        return Good
"""
GPU = """
        def devices(self):
            return [*super().devices(), DeviceInfo("FAST:0", "a fast one", is_gpu=True, hardware_id="0000:c1:00.0")]
"""


class Environment:
    """Distributions laid out on disk as an installed wheel is, and processes that see only them."""

    def __init__(self, root: Path) -> None:
        self.site, self._needed, self.cache = root / "site", root / "needed", root / "cache"
        self.site.mkdir()
        self._needed.mkdir()
        (self._needed / "backbay").symlink_to(_home("backbay"))
        for library in ("numpy", "pluggy", "gguf", "platformdirs"):
            self._link_all(_home(library).parent)

    def _link_all(self, libraries: Path) -> None:
        """Make a folder of libraries importable, without the metadata that says what is installed."""
        for part in libraries.iterdir():
            link = self._needed / part.name
            if part.suffix not in (".dist-info", ".egg-info", ".pth", ".egg-link") and not link.exists():
                link.symlink_to(part)

    def install(
        self,
        distribution: str,
        modules: dict[str, str],
        points: Iterable[str],
        *,
        group: str = "backbay.backends",
        version: str = "1.0",
    ) -> None:
        """Install modules by name and source, and entry points as `name = value`."""
        for name, source in modules.items():
            (self.site / f"{name}.py").write_text(dedent(source))
        info = self.site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))

    def install_backend(self, name: str, source: str) -> None:
        """A distribution `backbay-NAME` whose backend NAME is the module `NAME_plugin`."""
        self.install(f"backbay-{name}", {f"{name}_plugin": source}, [f"{name} = {name}_plugin"])

    def python(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # -S leaves out this interpreter's own packages, and with them the backends that happen to be installed.
        return self._run(["-S", "-c", dedent(code)], variables)

    def backbay(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run(["-S", "-m", "backbay", *words], variables)

    def installed_command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """`backbay` as installers write it, a program in a folder of its own, where Python looks first."""
        program = self.site.parent / "bin" / "backbay"
        program.parent.mkdir(exist_ok=True)
        program.write_text("from backbay.cli.program import console\nconsole()\n")
        return self._run(["-S", str(program), *words], variables)

    def _run(self, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("BACKBAY_", "PYTHON", "COLUMNS"))
        }
        path = os.pathsep.join(map(str, (self.site, self._needed)))
        return subprocess.run(
            [sys.executable, *words],
            env={**inherited, "PYTHONPATH": path, "BACKBAY_CACHE_DIR": str(self.cache), **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


def with_gpu(source: str) -> str:
    """The same plugin, with a device that calls itself a GPU."""
    return source.replace("kernels = kernel\n", f"kernels = kernel\n{GPU}")


def _home(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent

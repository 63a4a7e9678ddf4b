"""A plugin that pip built and installed is found by its entry point, like those of the other tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from environment import GOOD, Environment

PROJECT = """
    [build-system]
    requires = []
    build-backend = "build"
    backend-path = ["."]

    [project]
    name = "backbay-packed"
    version = "3.1"
"""
# What a build backend does, without one that would have to be downloaded.
BUILD = """
    from pathlib import Path
    from zipfile import ZipFile

    INFO = "backbay_packed-3.1.dist-info"
    FILES = {
        f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: backbay-packed\\nVersion: 3.1\\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{INFO}/entry_points.txt": "[backbay.backends]\\npacked = packed_plugin\\n",
    }

    def build_wheel(directory, config_settings=None, metadata_directory=None):
        name = "backbay_packed-3.1-py3-none-any.whl"
        files = {"packed_plugin.py": Path("packed_plugin.py").read_text(), **FILES}
        with ZipFile(Path(directory) / name, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
            wheel.writestr(f"{INFO}/RECORD", "".join(f"{path},,\\n" for path in files))
        return name
"""


def test_pip_installs_a_plugin_and_it_is_found_probed_and_opened(
    environment: Environment, tmp_path: Path
) -> None:
    pytest.importorskip("pip")
    source = tmp_path / "source"
    source.mkdir()
    for name, text in {"pyproject.toml": PROJECT, "build.py": BUILD, "packed_plugin.py": GOOD}.items():
        (source / name).write_text(dedent(text))
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        str(environment.site),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)

    listed = environment.backbay("list").stdout
    assert listed.splitlines()[1].split() == ["packed", "backbay-packed", "3.1", "yes", "CPU:0"]
    done = environment.python("import backbay; print(backbay.open().name)")
    assert done.stdout == "packed\n", done.stderr

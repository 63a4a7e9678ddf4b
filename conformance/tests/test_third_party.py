"""A plugin in a folder of its own, installed by pip as a third party installs it, gets exactly the right verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

PROJECT = """
[build-system]
requires = []
build-backend = "build_wheel"
backend-path = ["."]

[project]
name = "their-backend"
version = "0.1"
dependencies = ["backbay"]

[project.entry-points."backbay.backends"]
theirs = "their_backend"
"""
# Pip builds without a network, and so with no more than what stands in the folder.
BUILD = '''
import zipfile

FILES = {
    "METADATA": "Metadata-Version: 2.1\\nName: their-backend\\nVersion: 0.1\\nRequires-Dist: backbay\\n",
    "WHEEL": "Wheel-Version: 1.0\\nGenerator: theirs\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "entry_points.txt": "[backbay.backends]\\ntheirs = their_backend\\n",
}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel: one module, and its metadata."""
    name, info = "their_backend-0.1-py3-none-any.whl", "their_backend-0.1.dist-info"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        wheel.write("their_backend.py")
        for file, text in FILES.items():
            wheel.writestr(f"{info}/{file}", text)
        wheel.writestr(f"{info}/RECORD", "")
    return name
'''
PLUGIN = """
import os
from backbay import backends, hookimpl, ops

Reference = backends()["cpu_ref"].load()


class Theirs(Reference):
    contract_version = 1
    kernels = {
        **{op: kernel for op, kernel in Reference.kernels.items() if op is not ops.tri},
        ops.softmax: lambda x: Reference.kernels[ops.softmax](x) * 1.01,  # more than a step of bf16
        ops.sigmoid: lambda x: os._exit(3),
    }


@hookimpl
def backbay_backend():
    return Theirs
"""
OPS = "softmax,tri,sigmoid,silu,composites"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the plugin; everything else is that of the tests."""
    folder, project = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("project")
    venv.create(folder, symlinks=True)
    made = folder / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
    shared = [entry for entry in sys.path if Path(entry).is_dir() and "site-packages" in entry]
    lines = [f"import site; site.addsitedir({entry!r})\n" for entry in shared]
    (Path(packages) / "shared.pth").write_text("".join(lines))
    for name, text in (("pyproject.toml", PROJECT), ("build_wheel.py", BUILD), ("their_backend.py", PLUGIN)):
        (project / name).write_text(text)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", str(made), "install", *options, str(project), check=True)
    return made


def run(*command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=check)


def test_one_wrong_one_missing_and_one_that_exits(python: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("conform", "theirs", "--size", "smoke", "--op", OPS, "--jobs", "1", "--json", str(report))
    done = run(str(python), "-m", "backbay", *words)
    assert done.returncode == 1, done.stderr
    told = json.loads(report.read_text())
    assert told["facts"]["backend"] == "their-backend 0.1"
    states: dict[str, set[str]] = {}
    for cell in told["cells"]:
        states.setdefault(cell["name"], set()).add(cell["state"])
    assert states.pop("composites") == {"failing"}  # and they say which op they fail for
    wrong = {name: state for name, state in states.items() if state != {"full"}}
    assert wrong == {"softmax": {"failing"}, "sigmoid": {"failing"}, "tri": {"unsupported"}}
    assert "the process ended with exit status 3" in done.stdout
    for outcome in told["failures"]:
        if outcome["item"].startswith("graph/composites"):
            guilty = "sigmoid" if outcome["check"] == "crash" else "wrong by themselves: softmax"
            assert guilty in outcome["call"] + outcome["message"]


def test_the_script_for_any_ci_gives_its_variables_to_the_command(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "action" / "conform.sh"
    command = tmp_path / "backbay"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REPORT": str(tmp_path), "BACKEND": "ort"}
    usual, options = ["--seed", "0"], ["--option", "ep=their_provider", "--option", "precision=f16"]
    judged = {"OPTIONS": "ep=their_provider precision=f16", "SIZE": "smoke", "KNOWN": "their known.txt"}
    for more, words in (
        ({}, ["--size", "default", *usual]),
        (judged, ["--size", "smoke", *usual, *options, "--known", "their known.txt"]),
    ):
        told = subprocess.run(["bash", script], env=own | more, text=True, capture_output=True, check=True)
        assert told.stdout.splitlines()[: 3 + len(words)] == ["conform", "ort", *words, "--json"]

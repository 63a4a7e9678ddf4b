"""The files of a new backend's repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from environment import GOOD, Environment

from backbay import CONTRACT_VERSION
from backbay.cli import main
from backbay.cli.scaffold.new_backend import TEMPLATES, files

KINDS = ("kernels", "graph")
STARTERS = ["mulmat", "add", "mul", "sigmoid", "rms_norm", "contiguous", "copy"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_names_the_backend(kind: str) -> None:
    written = files("my_engine", kind)
    assert written["src/backbay_my_engine/backend.py"].count("class MyEngineBackend") == 1
    assert f'contract_version = "{CONTRACT_VERSION}"' in written["src/backbay_my_engine/backend.py"]
    assert {".gitignore", ".gitlab-ci.yml", ".github/workflows/conformance.yml", "known-failures.txt"} <= set(
        written
    )
    for path, text in written.items():
        for left in ("mybackend", "MyBackend", "CONTRACT"):
            assert left not in path + text, (path, left)
    project = tomllib.loads(written["pyproject.toml"])
    assert project["project"]["entry-points"]["backbay.backends"] == {"my_engine": "backbay_my_engine"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_are_those_that_its_own_test_needs(kind: str) -> None:
    kernels = files("mine", kind)["src/backbay_mine/kernels.py"]
    assert re.findall(r"@kernel\(ops.(\w+)\)", kernels) == STARTERS
    assert "`backbay conform mine --next`" in kernels


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_are_at_most_120_characters_long(kind: str) -> None:
    for path, text in files("mine", kind).items():
        assert max(map(len, text.splitlines())) <= 120, path


def test_the_repository_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "engine"
    assert main(["new-backend", "engine", "--graph", "--into", str(folder)]) == 0
    assert (folder / "src" / "backbay_engine" / "engine.py").is_file()
    assert "backbay conform engine --next" in capsys.readouterr().out
    assert main(["new-backend", "engine", "--into", str(folder)]) == 1
    assert "is not empty; name another folder with --into" in capsys.readouterr().err


def test_the_name_of_an_installed_backend_is_refused(environment: Environment, tmp_path: Path) -> None:
    environment.install_backend("good", GOOD)
    made = environment.backbay("new-backend", "good", "--into", str(tmp_path / "mine"))
    assert (made.returncode, (tmp_path / "mine").exists()) == (1, False)
    assert "'good' is the name of a backend of backbay-good 1.0, which is installed" in made.stderr


@pytest.mark.parametrize("name", ["My", "my-engine", "3d", "../up", "a.b", ""])
def test_a_name_that_no_module_can_have_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["new-backend", name])
    assert "must be small letters, digits and _" in capsys.readouterr().err


def test_the_templates_are_among_the_files_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    [pattern] = project["tool"]["setuptools"]["package-data"]["backbay.cli.scaffold"]
    found = {path for path in TEMPLATES.parent.glob(pattern) if path.is_file()}
    assert {path for path in TEMPLATES.rglob("*") if path.is_file()} <= found

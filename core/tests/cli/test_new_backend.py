"""The files of a new backend's repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from environment import GOOD, Environment

from backbay import CONTRACT_VERSION
from backbay.cli import main
from backbay.cli.scaffold.new_backend import TEMPLATES, repository_files

KINDS = ("kernels", "graph")
SOURCE = "https://example.org/team/backbay"
CI = (".github/workflows/conformance.yml", ".gitlab-ci.yml")
STARTERS = ["mulmat", "add", "mul", "sigmoid", "rms_norm", "contiguous", "copy"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_names_the_backend(kind: str) -> None:
    written = repository_files("my_engine", kind)
    assert written["src/backbay_my_engine/backend.py"].count("class MyEngineBackend") == 1
    assert f'contract_version = "{CONTRACT_VERSION}"' in written["src/backbay_my_engine/backend.py"]
    assert {".gitignore", ".gitlab-ci.yml", ".github/workflows/conformance.yml", "known-failures.txt"} <= set(
        written
    )
    for path, text in written.items():
        for left in ("mybackend", "MyBackend", "CONTRACT"):
            assert left not in path + text, (path, left)
    project = tomllib.loads(written["pyproject.toml"])
    named = {"my_engine": "backbay_my_engine.backend:MyEngineBackend"}
    assert project["project"]["entry-points"]["backbay.backends"] == named


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_are_those_that_its_own_test_needs(kind: str) -> None:
    kernels = repository_files("mine", kind)["src/backbay_mine/kernels.py"]
    assert re.findall(r"@kernel\(ops.(\w+)\)", kernels) == STARTERS
    assert "`backbay conform mine --next`" in kernels


@pytest.mark.parametrize("kind", KINDS)
def test_the_lines_are_at_most_120_characters_long(kind: str) -> None:
    for path, text in repository_files("mine", kind, "https://example.org/backbay").items():
        assert max(map(len, text.splitlines())) <= 120, path


def test_the_repository_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "engine"
    assert main(["new-backend", "engine", "--graph", "--into", str(folder)]) == 0
    assert (folder / "src" / "backbay_engine" / "engine.py").is_file()
    printed = capsys.readouterr().out
    assert "backbay conform engine --size smoke\n" in printed
    assert "backbay conform engine --next\n" in printed
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


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone without remotes, whose folder core is what backbay is installed from."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / "core").mkdir()
    info = tmp_path / "backbay-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: backbay\nVersion: 9.9\n")
    (info / "direct_url.json").write_text(json.dumps({"url": (folder / "core").as_uri(), "dir_info": {}}))
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def add_origin(clone: Path, remote: str) -> None:
    subprocess.run(["git", "-C", clone, "remote", "add", "origin", remote], check=True)


def written_for_ci(folder: Path, *options: str) -> list[str]:
    """The files of CI in a new repository."""
    assert main(["new-backend", "mine", "--into", str(folder), *options]) == 0
    return [(folder / path).read_text() for path in CI]


def test_ci_clones_backbay_from_the_named_source(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_origin(clone, "https://example.org/other")
    for text in written_for_ci(tmp_path / "new", "--source", SOURCE):
        assert SOURCE in text
        assert "example.org/other" not in text
    assert f"A backend of [backbay]({SOURCE}):" in (tmp_path / "new" / "README.md").read_text()
    assert f"CI clones backbay from {SOURCE}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "remote",
    [
        SOURCE,
        "https://somebody:secret@example.org/team/backbay",
        "git@example.org:team/backbay",
        "ssh://git@example.org/team/backbay",
    ],
)
def test_ci_clones_backbay_from_the_remote_of_the_clone(remote: str, clone: Path, tmp_path: Path) -> None:
    add_origin(clone, remote)
    for text in written_for_ci(tmp_path / "new"):
        assert SOURCE in text
        assert "secret" not in text


@pytest.mark.parametrize("remote", ["", "/srv/backbay", "file:///srv/backbay"])
def test_ci_says_that_it_needs_an_address(
    remote: str, clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if remote:
        add_origin(clone, remote)
    github, gitlab = map(yaml.safe_load, written_for_ci(tmp_path / "new"))
    assert "CI needs the address of backbay" in capsys.readouterr().err
    assert github["env"] == {"BACKBAY_SOURCE": "${{ vars.BACKBAY_SOURCE || '' }}"}
    assert gitlab["variables"] == {"BACKBAY_SOURCE": ""}
    commands = [step["run"] for job in github["jobs"].values() for step in job["steps"] if "run" in step]
    commands += [line for job in (gitlab["smoke"], gitlab["certificate"]) for line in job["before_script"]]
    clones = [command for command in commands if "git clone" in command]
    assert len(clones) == 4
    for command in set(clones):
        variables = {**os.environ, "BACKBAY_SOURCE": ""}
        ended = subprocess.run(
            ["bash", "-e", "-c", command],
            check=False,
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
        )
        assert ended.returncode != 0
        assert "BACKBAY_SOURCE: set this" in ended.stderr


def test_a_folder_of_another_repository_is_no_clone(clone: Path, tmp_path: Path) -> None:
    add_origin(clone, SOURCE)
    core = clone / "parts" / "core"
    core.mkdir(parents=True)
    origin = json.dumps({"url": core.as_uri(), "dir_info": {}})
    (tmp_path / "backbay-9.9.dist-info" / "direct_url.json").write_text(origin)
    assert not any(SOURCE in text for text in written_for_ci(tmp_path / "new"))


@pytest.mark.parametrize(
    "source", ["backbay", "/srv/backbay", "https://example.org", "https://x.org/a'b", ""]
)
def test_a_source_that_is_no_address_is_refused(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["new-backend", "mine", "--source", source])
    assert "must be an address such as https://example.org/backbay" in capsys.readouterr().err

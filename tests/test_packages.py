"""The packages can be published: one version, a licence in each, bounds at both ends that CI tests."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import setuptools
import yaml
from doc_blocks import ROOT

from backbay import CONTRACT_VERSION

sys.path.insert(0, str(ROOT / "lab" / "tools"))
import dist
import versions

PACKAGES = versions.PACKAGES
BOUND = re.compile(r"[a-z0-9-]+(\[[a-z,]+\])?(>=(?P<least>[0-9.]+),<[0-9.]+|~=[0-9.]+)")


def project(package: str) -> dict:
    return tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]


def needed(package: str) -> list[str]:
    extras = project(package).get("optional-dependencies", {})
    return [*project(package)["dependencies"], *(one for extra in extras.values() for one in extra)]


def test_every_package_of_the_workspace_is_known():
    found = {
        str(path.parent.relative_to(ROOT))
        for pattern in ("*", "*/*", "*/*/*")
        for path in ROOT.glob(f"{pattern}/pyproject.toml")
    }
    assert {path for path in found if not path.startswith((".", "tests", "examples", "backbay-"))} == set(
        PACKAGES
    )


def test_pip_installs_every_package_of_the_clone_but_those_for_tests_ray_torch_and_jax(monkeypatch):
    said = {}
    monkeypatch.setattr(setuptools, "setup", said.update)
    runpy.run_path(ROOT / "setup.py")
    required = dict(one.split(" @ ") for one in said["install_requires"])
    names = {re.match("[a-z-]+", one)[0]: folder for one, folder in required.items()}
    assert names == {
        project(package)["name"]: (ROOT / package).as_uri()
        for package in PACKAGES
        if package not in ("conformance/selftest", "apps/ray", "plugins/torch", "plugins/jax")
    }
    for one in required:
        package = next(package for package in PACKAGES if project(package)["name"] == one.partition("[")[0])
        extras = re.findall(r"\[(.*)\]", one)
        assert set(extras) <= set(project(package).get("optional-dependencies", {})), one


def test_the_version_comes_from_one_place_and_from_the_contract():
    version = versions.current()
    assert version.startswith(f"{CONTRACT_VERSION}.")
    for package in PACKAGES:
        text = (ROOT / package / "pyproject.toml").read_text()
        assert text == versions.with_version(text, version), f"run python lab/tools/versions.py {version}"


def test_readme_and_packages_name_the_one_address_or_none():
    address = versions.source()
    readme = (ROOT / "README.md").read_text()
    assert readme == versions.with_clone(readme, address), "run python lab/tools/versions.py"
    assert readme.count("git clone ") == bool(address)
    for package in PACKAGES:
        assert project(package).get("urls", {}) == ({"Source": address} if address else {}), package


@pytest.mark.parametrize("package", PACKAGES)
def test_an_address_is_written_and_removed(package: str):
    text = versions.with_source((ROOT / package / "pyproject.toml").read_text(), "")
    written = versions.with_source(text, "https://example.org/backbay")
    assert tomllib.loads(written)["project"]["urls"] == {"Source": "https://example.org/backbay"}
    assert versions.with_source(written, "") == text


def test_the_readme_gets_the_command_that_clones_an_address():
    written = versions.with_clone("```sh\nmake demo\n```\n", "https://example.org/backbay")
    assert written == "```sh\ngit clone https://example.org/backbay backbay && cd backbay\nmake demo\n```\n"
    assert versions.with_clone(written, "") == "```sh\nmake demo\n```\n"


def test_nothing_is_installed_from_an_index_under_our_names():
    """They are not ours there, so a stranger could publish what users would run."""
    names = "|".join(
        [*(project(package)["name"] for package in PACKAGES), *(f"backbay-ggml-{gpu}" for gpu in dist.GPUS)]
    )
    command = r"pip install (?!.*--no-index)[^\n`;&|#]*"
    ours = re.compile(rf"(?:{command} |\binstall )['\"]?(?:{names})(?![\w/-])|github\.com/backbay")
    kinds = {".md", ".py", ".toml", ".yml", ".sh", ".txt"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = {ROOT / name for name in listed.splitlines() if Path(name).suffix in kinds or name == "Makefile"}
    found = [
        f"{path}: {hit[0]}"
        for path in paths - {Path(__file__)}
        if path.is_file()
        for hit in ours.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("gpu", dist.GPUS)
def test_code_for_a_gpu_needs_the_library_of_its_own_version_and_comes_from_the_same_files(gpu: str):
    text = (ROOT / dist.LIBGGML / "pyproject.toml").read_text()
    library, added = tomllib.loads(text), tomllib.loads(dist.with_gpu(text, gpu))
    said, ours = added["project"], library["project"]
    assert said["name"] == f"backbay-ggml-{gpu}"
    assert said["dependencies"][0] == f"backbay-ggml-lib=={ours['version']}"
    assert (said["version"], said["license-files"]) == (ours["version"], ours["license-files"])
    settings = added["tool"]["scikit-build"]
    assert settings["cmake"].pop("define") == {"BACKBAY_GPU": gpu}
    assert settings == library["tool"]["scikit-build"]  # so its sources have the same hash, in source.txt


def test_code_for_cuda_needs_the_libraries_that_it_is_compiled_against():
    text = (ROOT / dist.LIBGGML / "pyproject.toml").read_text()
    needed = tomllib.loads(dist.with_gpu(text, "cuda"))["project"]["dependencies"][1:]
    toolkit = (ROOT / "lab/devices/cuda_toolkit.txt").read_text()
    for one in needed:
        name, version = re.fullmatch(r"([a-z-]+)~=([0-9.]+)", one).groups()
        assert f"\n{name}=={version}." in toolkit
    folder = f"nvidia/cu{version.partition('.')[0]}/lib"  # where NVIDIA's packages put them
    assert folder in (ROOT / dist.LIBGGML / "CMakeLists.txt").read_text()


def test_a_new_version_is_written_everywhere():
    text = versions.with_version((ROOT / "conformance/selftest/pyproject.toml").read_text(), "2.0.1")
    written = tomllib.loads(text)["project"]
    assert written["version"] == "2.0.1"
    siblings = [one for one in written["dependencies"] if one.startswith("backbay")]
    assert siblings == ["backbay~=2.0", "backbay-conformance~=2.0", "backbay-cpu-ref~=2.0"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_an_index_shows(package: str):
    said = project(package)
    brings = sorted((ROOT / package).glob("src/*/page/libraries/LICENSES.txt"))  # libraries of others
    assert said["license"] == ("MIT AND BSD-3-Clause" if brings else "MIT")
    places = [str(path.relative_to(ROOT / package)) for path in brings]
    assert said["license-files"] == ["LICENSE", *places]
    assert (ROOT / package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (ROOT / package / said["readme"]).is_file()
    assert said["authors"]
    assert said["keywords"]
    assert not any("macOS" in one or "Windows" in one for one in said["classifiers"])  # never run there


@pytest.mark.parametrize("package", PACKAGES)
def test_every_dependency_is_bound_at_both_ends_and_the_lower_one_is_tried(package: str):
    lowest = dict(
        re.findall(r"^([a-z0-9-]+)==([0-9.]+)$", (ROOT / "requirements-lowest.txt").read_text(), re.MULTILINE)
    )
    for one in needed(package):
        found = BOUND.fullmatch(one.replace(" ", ""))
        assert found, f"{one} lacks a bound"
        name = re.match("[a-z0-9-]+", one)[0]
        if found["least"] and name in lowest:
            least = found["least"]
            assert (lowest[name] + ".").startswith(least + "."), f"{one} is tried with {lowest[name]}"


def test_ci_runs_every_python_that_the_packages_name():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    tried = set(jobs["test"]["strategy"]["matrix"]["python"])
    named = {
        one.rpartition(" ")[2] for one in project("core")["classifiers"] if re.search(r":: 3\.\d+$", one)
    }
    assert named == tried


@pytest.mark.parametrize("workflow", ["ci.yml", "release.yml"])
def test_no_job_hangs_for_hours(workflow: str):
    jobs = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())["jobs"]
    assert [name for name, job in jobs.items() if "timeout-minutes" not in job] == []


def test_a_release_is_published_by_trust_with_attestations():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["publish"]["permissions"] == {
        "id-token": "write",
        "attestations": "write",
        "contents": "read",
    }
    assert jobs["publish"]["needs"] == ["build", "library", "gpus"]


def test_an_sdist_is_packed_in_one_way_and_its_wheel_holds_the_templates(tmp_path: Path):
    build = pytest.importorskip("build.env", reason="needs requirements-dist.txt")
    assert build
    made = subprocess.run(
        [
            sys.executable,
            ROOT / "lab/tools/dist.py",
            "core",
            "--only-build",
            "--twice",
            "--into",
            tmp_path / "dist",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    wheel = zipfile.ZipFile(next((tmp_path / "dist").glob("backbay-*.whl")))
    assert any(name.endswith("templates/both/github/workflows/conformance.yml") for name in wheel.namelist())
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    with tarfile.open(next((tmp_path / "dist").glob("backbay-*.tar.gz"))) as sdist:
        assert any(name.endswith("/LICENSE") for name in sdist.getnames())

"""Building libggml again, with other options."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from backbay_ggml import rebuild

FOLDER = {"url": "file:///home/me/backbay/plugins/ggml/lib", "dir_info": {"editable": True}}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes an installed backbay-ggml-lib, with the record that pip keeps of its origin."""

    def made(origin: dict | None) -> None:
        folder = tmp_path / "backbay_ggml_lib-9.9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: backbay-ggml-lib\nVersion: 9.9.9\n")
        if origin:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(tmp_path)

    return made


def test_the_folder_that_the_package_came_from_is_built_again(installed) -> None:
    installed(FOLDER)
    assert rebuild.build_command()[-1] == FOLDER["url"]


@pytest.mark.parametrize("origin", [None, {"url": "file:///tmp/some.whl", "archive_info": {}}])
def test_what_came_as_a_wheel_has_no_folder_to_build(origin, installed) -> None:
    installed(origin)
    with pytest.raises(SystemExit, match="was not built from a folder; in a clone of backbay: pip install"):
        rebuild.build_command()


def test_settings_of_the_environment_are_kept_and_come_last(monkeypatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_RPC=OFF")
    assert rebuild.cmake_options(["-DGGML_CUDA=ON"]).split() == ["-DGGML_CUDA=ON", "-DGGML_RPC=OFF"]


def test_show_prints_the_command_and_runs_nothing(capsys, monkeypatch, installed) -> None:
    installed(FOLDER)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    assert rebuild.main(["--show", "-DGGML_CUDA=ON"]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words[0] == "CMAKE_ARGS=-DGGML_CUDA=ON"
    assert words[2:5] == ["-m", "pip", "install"]


def test_pip_gets_the_options(installed) -> None:
    installed(FOLDER)
    assert "--no-cache-dir" in rebuild.build_command()  # pip would take a wheel with other options


def test_a_failed_build_ends_with_its_reason(monkeypatch, capfd, installed) -> None:
    installed(FOLDER)
    pip = """
import os, sys
print("CMAKE_ARGS:", os.environ["CMAKE_ARGS"])
print("  Could NOT find Vulkan (missing: glslc)")
print("ERROR: Failed building wheel", file=sys.stderr)
sys.exit(7)
"""
    monkeypatch.setattr(rebuild, "build_command", lambda: [sys.executable, "-c", pip])
    assert rebuild.main(["-DGGML_VULKAN=ON"]) == 7
    told = capfd.readouterr().out
    assert "\nCMAKE_ARGS: -DGGML_VULKAN=ON" in told
    ending = "was not built, and what was installed before is as it was.\n  Could NOT find Vulkan (missing: glslc)\n"
    assert told.endswith(ending)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("GGML_CUDA=ON", "unrecognized arguments: GGML_CUDA=ON"),
        ("--sho", "unrecognized arguments: --sho"),
        ("-D", "argument -D: expected one argument"),
    ],
)
def test_unknown_arguments_are_refused(given, says, capsys, monkeypatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as ended:
        rebuild.main([given])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_help_shows_an_option_for_cmake(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        rebuild.main(["--help"])
    assert ended.value.code == 0
    assert "-DGGML_CUDA=ON" in capsys.readouterr().out

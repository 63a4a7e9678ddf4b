"""The cache folder keeps values between processes; whatever happens to it, nothing but time is lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from environment import Environment

from backbay.data.cache_folder import CachedValue, cache_files, cache_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def only_file(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def test_a_value_is_found_by_its_kind_label_and_facts(folder: Path) -> None:
    CachedValue("trials", "amx", ["ggml 0.15", 3]).keep({"works": True})
    assert CachedValue("trials", "amx", ["ggml 0.15", 3]).recall() == {"works": True}
    assert CachedValue("trials", "amx", ["ggml 0.15", 4]).recall() is None
    assert CachedValue("trials", "repack", ["ggml 0.15", 3]).recall() is None
    assert CachedValue("probes", "amx", ["ggml 0.15", 3]).recall() is None


def test_a_value_is_replaced_and_forgotten(folder: Path) -> None:
    value = CachedValue("trials", "amx", [])
    value.keep(1)
    value.keep(2)
    assert value.recall() == 2
    value.forget()
    value.forget()
    assert value.recall() is None
    assert cache_files() == []


def test_a_value_expires(folder: Path) -> None:
    value = CachedValue("probes", "hang", [])
    value.keep(1)
    assert value.recall(max_age=10_000) == 1
    for then in (time.time() - 20_000, time.time() + 5000):  # a clock may have been wrong
        os.utime(only_file(folder), (then, then))
        assert value.recall(max_age=10_000) is None


def test_a_label_is_no_path(folder: Path) -> None:
    CachedValue("probes", "../../étrange\n" + "x" * 500, []).keep(1)
    assert only_file(folder).parent == folder / "probes"


@pytest.mark.fault("a file of the cache folder holds nonsense", "it is ignored, and found out anew")
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b" " * (1 << 21)])
def test_nonsense_is_ignored(folder: Path, content: bytes) -> None:
    value = CachedValue("probes", "odd", [])
    value.keep(1)
    only_file(folder).write_bytes(content)
    assert value.recall() is None
    value.keep(2)
    assert value.recall() == 2


@pytest.mark.fault("the cache folder cannot be written", "nothing is kept, and no error")
def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    value = CachedValue("probes", "odd", [])
    value.keep(1)
    assert value.recall() is None
    value.forget()
    assert cache_files() == []


def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    value = CachedValue("probes", "odd", [])
    value.keep(1)
    path = only_file(folder)
    path.unlink()
    os.mkfifo(path)
    assert value.recall() is None


def test_the_folder_is_the_users_or_another_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKBAY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "backbay"
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "other"))
    assert cache_folder() == tmp_path / "other"
    monkeypatch.setenv("BACKBAY_NO_CACHE", "1")
    assert cache_folder() is None
    value = CachedValue("probes", "odd", [])
    value.keep(1)
    assert value.recall() is None


def test_the_command_lists_and_clears(environment: Environment) -> None:
    mine = environment.cache / "probes" / "notes.json"
    environment.python("""
        from backbay.data.cache_folder import CachedValue
        CachedValue("probes", "hang", []).keep(1)
        CachedValue("trials", "amx", []).keep(2)
        CachedValue("trials", "avx", []).keep(3)
    """)
    mine.write_text("not of backbay")
    assert environment.backbay("cache", "path").stdout == f"{environment.cache}\n"
    listed = environment.backbay("cache").stdout.splitlines()
    assert [line.split()[:2] for line in listed[:3]] == [["kind", "values"], ["probes", "1"], ["trials", "2"]]
    listed = environment.backbay("cache", "list", "trials").stdout.splitlines()
    assert sorted(line.split()[1].partition("-")[0] for line in listed) == ["amx", "avx", "key"]
    found = json.loads(environment.backbay("cache", "--json").stdout)
    assert found["folder"] == str(environment.cache)
    assert [(each["kind"], each["key"].partition("-")[0]) for each in found["kept"]] == [
        ("probes", "hang"),
        ("trials", "amx"),
        ("trials", "avx"),
    ]
    for action in ("list", "clear"):
        wrong = environment.backbay("cache", action, "prob")
        assert wrong.returncode == 2
        assert "nothing of a kind 'prob' was ever kept; kinds are" in wrong.stderr
    assert "removed 1 value" in environment.backbay("cache", "clear", "probes").stdout
    removed = json.loads(environment.backbay("cache", "clear", "--json").stdout)["removed"]
    assert [each["kind"] for each in removed] == ["trials", "trials"]
    assert mine.exists()
    assert "nothing is kept" in environment.backbay("cache").stdout


def test_the_command_without_a_folder(environment: Environment) -> None:
    off = {"BACKBAY_NO_CACHE": "1"}
    assert "it is switched off" in environment.backbay("cache", **off).stdout
    done = environment.backbay("cache", "path", **off)
    assert (done.returncode, "BACKBAY_NO_CACHE" in done.stderr) == (1, True)


def test_what_two_processes_find_out_at_once_is_found_once(environment: Environment) -> None:
    """The second one comes while the first one holds the lock, waits, and recalls; a process that dies holds nothing."""
    environment.python("""
        import subprocess, sys
        from backbay.data.cache_folder import CachedValue

        value = CachedValue("trials", "slow", [])
        second = (
            "from backbay.data.cache_folder import CachedValue; value = CachedValue('trials', 'slow', [])\\n"
            "with value.found_once(lambda: print('waits', flush=True)): print(value.recall())"
        )
        dying = "import os; from backbay.data.cache_folder import CachedValue\\n"
        dying += "with CachedValue('trials', 'slow', []).found_once(): os._exit(0)"
        subprocess.run([sys.executable, "-c", dying], check=True)
        with value.found_once():
            other = subprocess.Popen([sys.executable, "-c", second], stdout=subprocess.PIPE, text=True)
            assert other.stdout.readline() == "waits\\n"
            value.keep(7)
        assert other.communicate()[0].splitlines()[-1] == "7"
    """)

"""An entry is written from a certificate, or from the report of a run that earned none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commands import conform, run_command

from backbay import BackbayError
from backbay_register.adding import Submission, add, version_of
from backbay_register.entry import CERTIFICATE, HUNT, KNOWN, LOCK, Entry, locked, read_record
from backbay_register.register_command import command

BROKEN = "broken_backends:WrongEverywhere"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    path = folder / "report.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKBAY_CACHE_DIR", str(folder / "cache"))
        patch.setenv("PYTHONPATH", ":".join(entry for entry in sys.path if entry))
        assert conform(BROKEN, "--op", "add", "--size", "smoke", "--jobs", "1", "--json", str(path)) == 1
    return path


def test_a_run_that_failed_is_an_entry_with_its_failures(report: Path, tmp_path: Path) -> None:
    words = ["--engine", "broken", "--version", "2.0", "--register", str(tmp_path)]
    assert run_command(command, "add", str(report), *words) == 0
    folder = tmp_path / "broken" / "2.0"
    entry, said = Entry.read(folder), read_record(folder / CERTIFICATE)
    assert entry.level == "none"
    assert entry.command == f"backbay conform {BROKEN} --size smoke --json report.json"
    assert said["failures"][0]["item"].startswith("core/add/")
    assert "import" in said["failures"][0]["script"]
    assert said["counts"]["failed"] == sum(each.get("count", 1) for each in said["failures"])
    assert {"plugin", "suite", "calls"} <= said["digests"].keys()
    assert locked(folder)["hypothesis"] == entry.suite.hypothesis
    assert entry.files.keys() == {CERTIFICATE, KNOWN, LOCK}


def test_a_message_names_files_without_the_folders_of_a_machine(report: Path, tmp_path: Path) -> None:
    told, path = json.loads(report.read_text()), tmp_path / "told.json"
    told["failures"][0]["message"] = "aborted: /home/me/src/ggml.c:32: https://example.org/a/b, 1/2, lib/x.py"
    path.write_text(json.dumps(told))
    said = read_record(add(path, Submission("broken", version="2.0"), tmp_path) / CERTIFICATE)
    assert said["failures"][0]["message"] == "aborted: ggml.c:32: https://example.org/a/b, 1/2, lib/x.py"


def test_a_smaller_run_replaces_no_entry(report: Path, tmp_path: Path) -> None:
    told, larger = json.loads(report.read_text()), tmp_path / "larger.json"
    larger.write_text(json.dumps({**told, "size": "default"}))
    folder = add(larger, Submission("broken", version="2.0"), tmp_path)
    before = (folder / CERTIFICATE).read_bytes()
    with pytest.raises(
        BackbayError, match=r"2.0 stays: it tells of a run of size default, .* size smoke; remove"
    ):
        add(report, Submission("broken", version="2.0"), tmp_path)
    assert (folder / CERTIFICATE).read_bytes() == before
    add(larger, Submission("broken", version="2.0"), tmp_path)


def test_an_entry_is_checked_by_the_command(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add(report, Submission("broken", version="2.0"), tmp_path)
    capsys.readouterr()
    assert run_command(command, "check", str(folder), "--sample", "none", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    refused = {each["what"] for each in told["findings"] if each["agrees"] is False}
    assert {"missing lines", "lock file"} <= refused  # one op is no whole run, and names no engine
    assert "first calls" not in refused
    assert run_command(command, "check", str(folder), "--sample", "none") == 1
    assert "refused:\n" in capsys.readouterr().out


def test_a_hunt_stands_beside_its_entry(report: Path, tmp_path: Path) -> None:
    hunt = tmp_path / "hunt.json"
    assert (
        conform("broken_backends:Three", "--hunt", "5x", "--op", "add", "--jobs", "1", "--json", str(hunt))
        == 0
    )
    folder = add(report, Submission("broken", version="2.0", hunt=hunt), tmp_path)
    found = json.loads((folder / HUNT).read_text())
    assert {"last_places", "share"} >= found["worst"][0]["extremes"].keys()
    with pytest.raises(BackbayError, match="no whole run"):
        add(hunt, Submission("broken", version="2.0"), tmp_path)
    with pytest.raises(BackbayError, match="without --hunt"):
        add(report, Submission("broken", version="2.0", hunt=report), tmp_path)


def test_what_is_no_certificate_and_no_folder_is_refused(report: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"cells": []}')
    with pytest.raises(BackbayError, match="neither a certificate nor a report"):
        add(other, Submission("broken", version="1"), tmp_path)
    for name in ("", "..", "a/b"):
        with pytest.raises(BackbayError, match="no name of a folder"):
            add(report, Submission(name, version="1"), tmp_path)
    with pytest.raises(BackbayError, match="give --version"):
        version_of(Submission("no-such-distribution"))
    with pytest.raises(BackbayError, match="--engine NAME"):
        run_command(command, "add", str(report))

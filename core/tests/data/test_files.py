"""Files are written whole, or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backbay import BackbayError
from backbay.data import cache_folder
from backbay.data.cache_folder import replacing, write_text


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("old")
    with replacing(path) as (file,):
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.fault(
    "a program fails while it writes a file", "the older file stays whole, nothing else is left behind"
)
def test_a_failure_leaves_everything_as_it_was(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("old")

    def write_half() -> None:
        with replacing(first, second) as (file, other):
            file.write(b"new")
            other.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


@pytest.mark.fault(
    "the file to be written is a link to another", "the link is replaced, its target stays as it was"
)
def test_a_link_is_replaced_and_not_followed(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine")
    link.symlink_to(target)
    write_text(link, "report")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("mine", "report", False)


def test_an_error_names_the_file_and_the_cause(tmp_path):
    with pytest.raises(
        BackbayError, match=r"nowhere/report\.txt cannot be written: No such file or directory"
    ):
        write_text(tmp_path / "nowhere" / "report.txt", "text")


def test_an_error_is_ours_where_nothing_can_be_removed_either(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BackbayError, match=r"report\.txt cannot be written: Not a directory"):
        write_text(tmp_path / "file" / "report.txt", "text")
    with pytest.raises(BackbayError, match="cannot be written: File name too long"):
        write_text(tmp_path / ("long" * 64), "text")


@pytest.mark.fault("two threads of a program write one file", "the file is one of the two, whole")
def test_two_writers_of_one_file_do_not_share_their_half_files(tmp_path):
    path = tmp_path / "report.txt"
    with replacing(path) as (first,):
        first.write(b"first")
        write_text(path, "second, which is longer")
        assert path.read_text() == "second, which is longer"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.fault("the disk is full", "an error naming file and cause; the older file stays whole")
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("old")
    program = (
        "import resource, signal, sys\nfrom backbay.data.cache_folder import write_text\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "write_text(sys.argv[1], 'x' * 5000)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    assert "report.txt cannot be written: File too large" in done.stderr
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"report.txt": "old"}


@pytest.mark.fault(
    "two containers with equal process ids write one file of a shared volume",
    "the file is one of the two, whole",
)
def test_two_processes_of_one_id_do_not_share_their_half_files(tmp_path):
    path = tmp_path / "report.txt"
    program = (
        "import os, sys\nfrom backbay.data.cache_folder import replacing\nos.getpid = lambda: 1\n"
        "with replacing(sys.argv[1]) as (file,):\n"
        "    file.write(b'x' * 9); file.flush(); print(flush=True); input()\n"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "\n"  # both are amid the file
    assert len(list(tmp_path.iterdir())) == 2
    for writer in writers:
        assert writer.communicate("\n")[0] == ""
    assert [writer.returncode for writer in writers] == [0, 0]
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.txt", "x" * 9)]


@pytest.mark.fault(
    "a link or a file lies where a half-written file is to be", "an error; the link's target stays as it was"
)
@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_lies_at_the_name_of_a_half_file_is_not_opened(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(cache_folder, "token_hex", lambda _: "guessed")
    victim, laid = tmp_path / "victim", tmp_path / ".report.txt.guessed.partial"
    victim.write_text("mine")
    laid.symlink_to(victim) if kind == "link" else laid.write_text("mine")
    with pytest.raises(BackbayError, match="cannot be written: File exists"):
        write_text(tmp_path / "report.txt", "text")
    assert (victim.read_text(), laid.read_text()) == ("mine", "mine")
    assert not (tmp_path / "report.txt").exists()


@pytest.mark.fault(
    "the file to be written is a pipe, a device or a link to one", "an error at once; it stays as it was"
)
@pytest.mark.parametrize("kind", ["pipe", "link to a device", "link to an open file", "folder"])
def test_what_is_no_file_is_not_replaced(tmp_path, kind):
    path = tmp_path / "report.txt"
    with (tmp_path / "open").open("wb") as file:
        targets = {"link to a device": os.devnull, "link to an open file": f"/proc/self/fd/{file.fileno()}"}
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(targets[kind])
        before = os.lstat(path)
        with pytest.raises(BackbayError, match=r"report.txt cannot be written: (it is|Is) a"):
            write_text(path, "text")
        assert os.lstat(path) == before


def test_a_name_of_the_longest_kind_can_be_written(tmp_path):
    path: Path = tmp_path / ("n" * 255)
    write_text(path, "text")
    assert path.read_text() == "text"

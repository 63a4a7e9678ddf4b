"""Files are written whole, or not at all."""

import subprocess
import sys

import pytest

from backbay import BackbayError
from backbay.data.cache_folder import replacing, write_text


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("old")
    with replacing(path) as (aside,):
        aside.write_text("new")
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
        with replacing(first, second) as (aside, other):
            aside.write_text("new")
            other.write_text("new")
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
        first.write_text("first")
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

"""What a user names is opened as a regular file of a bounded size, or refused at once."""

import os
import socket

import pytest

from backbay.data.cache_folder import CachedValue
from backbay.regular_files import open_regular, read_regular


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_file_is_read_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4) == b"data"


@pytest.mark.fault("a file that is named is a pipe, a socket, a device or a folder", "an error at once")
@pytest.mark.parametrize("mode", ["rb", "ab", "wb"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path, pipe, mode):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path, told in [
            (pipe, "it is a pipe, not a regular file"),
            (tmp_path / "socket", "it is a socket, not a regular file"),
            ("/dev/zero", "it is a device, not a regular file"),
            (tmp_path, "Is a directory"),
        ]:
            with pytest.raises(OSError, match=told):
                open_regular(path, mode)


@pytest.mark.fault("a file that is named is larger than any of its kind", "an error before it is read")
def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    sparse = tmp_path / "sparse"
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    with pytest.raises(OSError, match="more than the 1024 bytes"):
        read_regular(sparse, 1024)
    with pytest.raises(OSError, match="more than the 10 bytes"):  # its status tells no size
        read_regular("/proc/self/status", 10)


@pytest.mark.parametrize("path", ["a\0b", "\ud83d\0"])
def test_a_text_that_names_no_file_is_an_error_of_the_system(path):
    with pytest.raises(OSError, match="no path of a file"):
        open_regular(path)


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        open_regular(tmp_path / "link", "ab")
    assert not (tmp_path / "victim").exists()


@pytest.mark.fault("files of the cache folder are pipes", "nothing waits; the values are found out anew")
def test_pipes_in_the_cache_folder_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    value = CachedValue("kind", "label", [1])
    value.path.parent.mkdir()
    for path in (value.path, value.path.parent / "lock"):
        os.mkfifo(path)
    assert value.recall() is None
    with value.found_once():
        value.keep(2)
    assert value.recall() is None  # the pipe stays: whoever laid it there must remove it

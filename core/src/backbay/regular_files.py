"""The one way to open a file that a user names: a regular file of a bounded size, or an error at once."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
"""Flags for opening: a pipe does not wait for its other end, and a terminal does not become the process's own."""
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str], mode: str = "rb", most: int | None = None) -> IO[Any]:
    """Open a regular file of at most `most` bytes; OSError says what else the path names. Nothing is waited for.

    To be written, a file is not opened through a link.
    """

    def open_it(name: str, flags: int) -> int:
        with suppress(FileNotFoundError):  # looked at first, as a device may act when it is opened
            require_regular(Path(name).stat(), name)
        is_read = flags & (os.O_WRONLY | os.O_RDWR) == 0
        link = 0 if is_read else getattr(os, "O_NOFOLLOW", 0)
        number = os.open(name, flags | WITHOUT_WAITING | link, 0o666)
        try:
            require_regular(status := os.fstat(number), name)
            _require_size(status.st_size, most, name)
        except OSError:
            os.close(number)
            raise
        return number

    encoding = None if "b" in mode else "utf-8"
    try:
        return open(os.fspath(path), mode, encoding=encoding, opener=open_it)
    except ValueError as error:  # a null character, or a lone surrogate
        raise OSError(errno.EINVAL, f"no path of a file: {error}", repr(path)) from None


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a regular file, at most so many; OSError if it is larger, or no regular file."""
    with open_regular(path, most=most) as file:
        data: bytes = file.read(most + 1)  # some files of the system tell no size, and others grow
    _require_size(len(data), most, path)
    return data


def require_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise OSError unless the status is a regular file's."""
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), stat.filemode(status.st_mode))
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise OSError if a path names what no file may take the place of: a device, a pipe, a link such as /dev/stdout."""
    with suppress(FileNotFoundError, NotADirectoryError):  # which the writer will tell, if it matters
        require_regular(Path(path).stat(), path)
        if Path(path).is_symlink() and Path(path).readlink().is_relative_to("/proc"):
            raise OSError(errno.EINVAL, "it is a link to an open file, not a file", os.fspath(path))


def _require_size(size: int, most: int | None, path: str | os.PathLike[str]) -> None:
    if most is not None and size > most:
        raise OSError(
            errno.EFBIG, f"it has more than the {most} bytes that such a file may have", os.fspath(path)
        )

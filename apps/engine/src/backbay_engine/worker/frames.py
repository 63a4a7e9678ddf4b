"""The wire between host and worker: frames over two pipes, each with a kind, a request's number and a payload."""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from threading import Lock
from typing import NamedTuple, final

from backbay.internals import run_if_free

_HEAD = struct.Struct("<QBI")  # bytes of the payload (of snapshots, over 4 GiB), kind, number of the request
_BUFFER = 1 << 16
_MOST_KEPT = 1 << 22  # bytes of a buffer that is kept for later frames
_PIPE = 1 << 20


class FrameKind(IntEnum):
    """What a frame says. The payload is a pickled value, but for BYTES."""

    # from the host
    SETUP = 1
    STOP_LOADING = 2
    REQUEST = 3
    CANCEL = 4
    PING = 5  # asks for a sign of life
    # from the worker
    LOG = 10
    OPENED = 11
    PROGRESS = 12
    READY = 13
    REFUSED = 14  # the model could not be loaded
    BEGUN = 15
    STEP = 16  # of an answer, as a tuple
    RESULT = 17
    FAILED = 18
    ARRAY = 19  # the shape and the dtype of a result whose bytes follow
    BYTES = 20
    ALIVE = 21


class Frame(NamedTuple):
    """A message between host and worker, about the request of this number."""

    kind: FrameKind
    number: int
    payload: bytes


@final
class FrameSender:
    """The writing end of a pipe; several threads may share one."""

    def __init__(self, pipe: io.FileIO) -> None:
        self._pipe, self._lock = pipe, Lock()
        self._waiting: deque[bytes] = deque()
        _widen(pipe)

    def send(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        """Write a frame; while another thread writes, leave the frame to it. BrokenPipeError if nobody reads."""
        self._waiting.append(encode_frame(kind, number, payload))
        self._write_waiting()

    def send_part(self, kind: FrameKind, number: int, payload: memoryview) -> None:
        """Write a frame of a large result; frames that wait go first."""
        with self._lock:
            self._write(b"".join(self._taken()))
            self._write(_HEAD.pack(len(payload), kind, number))
            self._write(payload)
        self._write_waiting()

    def _write_waiting(self) -> None:
        # Whoever holds the lock looks for new frames after its release, so that none is left behind.
        while self._waiting and run_if_free(self._lock, lambda: self._write(b"".join(self._taken()))):
            pass

    def _taken(self) -> list[bytes]:
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def _write(self, data: bytes | memoryview) -> None:
        written = self._pipe.write(data)
        while written < len(data):
            written += self._pipe.write(memoryview(data)[written:])


def encode_frame(kind: FrameKind, number: int = 0, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload), kind, number) + payload


def read_frames(pipe: io.FileIO, on_part: Callable[[], None] | None = None) -> Iterator[Frame]:
    """The frames of a pipe up to its end. ValueError if they are none.

    `on_part` is called when bytes have come: a large frame may take long, and whoever sends or reads it lives.
    """
    buffer, held = bytearray(_BUFFER), 0
    while got := pipe.readinto(memoryview(buffer)[held:]):
        if on_part is not None:
            on_part()
        held, at = held + got, 0
        while held - at >= _HEAD.size:
            size, kind, number = _HEAD.unpack_from(buffer, at)
            begin = at + _HEAD.size
            if held - begin < size:
                break
            at = begin + size
            yield Frame(FrameKind(kind), number, bytes(memoryview(buffer)[begin:at]))
        held -= at
        if at:  # a large frame comes in many parts, and its beginning stays where it is
            buffer[:held] = buffer[at : at + held]
        _make_room(buffer, held)


def _make_room(buffer: bytearray, held: int) -> None:
    """Let the buffer hold the frame that has begun; after a large one, give its memory back."""
    size = _HEAD.size + _HEAD.unpack_from(buffer)[0] if held >= _HEAD.size else 0
    if size > len(buffer):
        buffer.extend(bytes(size - len(buffer)))
    elif len(buffer) > _MOST_KEPT >= max(size, held):
        del buffer[_MOST_KEPT:]


def _widen(pipe: io.FileIO) -> None:
    """Give a pipe more room, so that a burst of frames does not wait for its reader."""
    with suppress(ImportError, AttributeError, OSError):  # only Linux can, up to the user's limit
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)

"""The parts of workers: frames, errors on the wire, log records, and the reasons of deaths."""

import io
import logging
import os
import pickle
import signal
import threading
import tracemalloc
from queue import SimpleQueue

import pytest
from patience import wait_until

from backbay import (
    BackbayError,
    BackendMemory,
    CacheFullError,
    DeviceMemory,
    Memory,
    ModelFileError,
    NoMemoryError,
)
from backbay_engine.worker import frames as wire
from backbay_engine.worker import reports
from backbay_engine.worker.exit_messages import MUTE, count_memory_kills, end_reason
from backbay_engine.worker.frames import FrameKind, FrameSender, encode_frame, read_frames
from backbay_engine.worker.program import StepSender
from backbay_engine.worker.reports import pack_error, unpack_error


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with io.FileIO(reading) as source, io.FileIO(writing, "w") as target:
        yield source, target


def test_frames_of_many_threads_come_whole(pipe):
    source, target = pipe
    sender, found = FrameSender(target), []
    reader = threading.Thread(target=lambda: found.extend(read_frames(source)))
    reader.start()

    def send(number):
        for size in (0, 1, 70_000, 300_000, 5):
            if size == 300_000:
                sender.send_part(FrameKind.BYTES, number, memoryview(bytes([number]) * size))
            else:
                sender.send(FrameKind.STEP, number, bytes([number]) * size)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    target.close()
    reader.join()
    assert len(found) == 40
    for number in range(1, 9):
        mine = [frame for frame in found if frame.number == number]
        assert sorted(len(frame.payload) for frame in mine) == [0, 1, 5, 70_000, 300_000]
        assert all(set(frame.payload) <= {number} for frame in mine)


class Huge(bytes):
    """As many bytes as no test can have."""

    def __len__(self):
        return 5 << 32


def test_a_frame_may_be_longer_than_32_bits_can_tell():
    assert encode_frame(FrameKind.RESULT, 1, Huge(b"end")).startswith((5 << 32).to_bytes(8, "little"))


def test_the_memory_of_a_large_frame_is_given_back(pipe):
    source, target = pipe
    sender, large, sizes = FrameSender(target), 50 << 20, []
    tracemalloc.start()
    try:

        def read():
            for found in read_frames(source):
                sizes.append(len(found.payload))
                del found
                sizes.append(tracemalloc.get_traced_memory()[0])

        reader = threading.Thread(target=read)
        reader.start()
        before = tracemalloc.get_traced_memory()[0]
        for size in (large, 5, 5):
            sender.send(FrameKind.RESULT, 1, bytes(size))
        target.close()
        reader.join()
    finally:
        tracemalloc.stop()
    assert sizes[::2] == [large, 5, 5]
    assert sizes[-1] - before < large // 4


def test_a_large_frame_is_not_moved_again_for_each_of_its_parts(pipe, monkeypatch):
    source, target = pipe
    moved, large = [], 20 << 20

    class Counting(bytearray):
        def __setitem__(self, place, value):
            moved.append(len(value))
            super().__setitem__(place, value)

    monkeypatch.setattr(wire, "bytearray", Counting, raising=False)
    reader = threading.Thread(target=lambda: list(read_frames(source)))
    reader.start()
    FrameSender(target).send(FrameKind.RESULT, 1, bytes(large))
    target.close()
    reader.join()
    assert sum(moved) < large


def test_each_part_of_a_large_frame_is_told(pipe):
    source, target = pipe
    parts, whole = [], []
    reader = threading.Thread(
        target=lambda: whole.extend(read_frames(source, lambda: parts.append(len(whole))))
    )
    reader.start()
    data = encode_frame(FrameKind.RESULT, 1, bytes(90))
    for at in range(0, len(data), 25):
        told = len(parts)
        target.write(data[at : at + 25])
        wait_until(lambda told=told: len(parts) > told)
    target.close()
    reader.join()
    assert parts == [0] * 5
    assert len(whole) == 1


@pytest.mark.fault("bytes on a worker's pipe are no frames", "ValueError, which ends the worker")
def test_what_is_no_frame_is_refused(pipe):
    source, target = pipe
    target.write(bytes(8) + b"\xff\0\0\0\0")
    with pytest.raises(ValueError, match="255 is not a valid FrameKind"):
        next(read_frames(source))


@pytest.mark.parametrize("end", [StepSender.succeed, StepSender.fail])
def test_a_worker_forgets_a_request_that_is_over(pipe, end):
    running = {7: threading.Event().set}
    end(StepSender(FrameSender(pipe[1]), 7, running, SimpleQueue()), BackbayError("the result"))
    assert not running


class OddError(BackbayError):
    """Its text is not of its arguments, and one of its attributes cannot be pickled."""

    def __init__(self, number, *, what):
        super().__init__(number)
        self.what, self.lock = what, threading.Lock()

    def __str__(self):
        return f"odd {self.what}"


def decoding():
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        NoMemoryError("short", BackendMemory(Memory(1), DeviceMemory("a", "b"))),
        ModelFileError("file", 3, "this", "that"),
        CacheFullError(1, 2, 3),
        FileNotFoundError(2, "no such file", "name"),
        KeyError("a"),
        MemoryError("none"),
        decoding(),
        OddError(5, what="thing"),
    ],
)
def test_errors_keep_class_text_and_attributes(error):
    found = unpack_error(pack_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    wanted = {name: value for name, value in vars(error).items() if name != "lock"}
    assert {name: value for name, value in vars(found).items() if name != "__notes__"} == wanted
    assert "in the model's worker" in found.__notes__[-1]


def test_an_error_of_a_class_that_the_host_lacks_becomes_the_class_above():
    kind = type("LostError", (ModelFileError,), {"__module__": "lost"})
    found = unpack_error(pack_error(kind("file", 3, "this", "that")))
    assert type(found) is ModelFileError
    assert found.offset == 3


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGBUS, "was killed by SIGBUS: a mapped file, such as the model's, may have been truncated"),
        (-signal.SIGABRT, "was killed by SIGABRT: a library gave up; its message is on standard error"),
        (-250, "was killed by signal 250"),
        (3, "ended with status 3"),
        (MUTE, "ended: it had no memory left, not even to tell of it"),
    ],
)
def test_deaths_are_told_in_words(status, told):
    assert end_reason(status, 0) == told


@pytest.mark.fault(
    "a worker dies while its host ignores SIGCHLD", "the error says that the reason is not known"
)
def test_a_death_without_a_status_is_told_as_one():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert end_reason(0, 0) == "ended; the system does not tell why, as this process ignores SIGCHLD"
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert end_reason(0, 0) == "ended with status 0"


@pytest.mark.fault("the system's out-of-memory killer kills a worker", "the error says that it probably did")
def test_the_out_of_memory_killer_is_named_if_it_killed_meanwhile(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    assert count_memory_kills(tmp_path) == 7
    assert count_memory_kills(tmp_path / "none") is None
    killed = -signal.SIGKILL
    assert "probably by the system's out-of-memory killer" in end_reason(killed, 6, root=tmp_path)
    assert "not by the system's out-of-memory killer" in end_reason(killed, 7, root=tmp_path)
    assert "perhaps by the system's out-of-memory killer" in end_reason(killed, None, root=tmp_path)


def test_log_records_keep_message_traceback_and_extras(caplog):
    sent = []
    handler = reports._RecordSender(sent.append)
    logger = logging.getLogger("backbay.test_of_workers")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        logger.exception("%s failed", "it", extra={"memory": {"size": 5}, "odd": threading.Lock()})
    logger.warning("plain %d", 5, extra={"memory": {"size": 5}})
    logger.removeHandler(handler)
    logger.propagate = True
    for data in sent:
        reports.handle_record(data)
    first, second = caplog.records
    assert first.getMessage() == "it failed"
    assert "ZeroDivisionError" in first.exc_text
    assert (second.getMessage(), second.memory) == ("plain 5", {"size": 5})
    assert pickle.dumps(reports.log_levels())

"""The store: rows are computed once, kept under a budget, and given up with the last request that wants them."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np
import pytest

from backbay import CancelledError, ClosedError
from backbay_engine import LogitsError
from backbay_engine.images.prepared_picture import Prepared
from backbay_engine.media.row_store import RowsLease, RowStore, StoreCounters

WIDTH, ROWS = 4, 2
EACH = 4 * WIDTH * ROWS


def prepared(n: int, rows: int = ROWS) -> Prepared:
    return Prepared(np.full((1, 3, 2, 2), n, np.float32), rows, (1, 1), (2, 2), "test")


class Encodes:
    """An encoder that waits at a gate, and may fail."""

    def __init__(self) -> None:
        self.groups: list[list[float]] = []
        self.reached, self.open = Event(), Event()
        self.open.set()
        self.faulty: set[float] = set()

    def __call__(self, pictures: Sequence[Prepared], cancel: Event) -> list[np.ndarray]:
        numbers = [float(picture.pixels.flat[0]) for picture in pictures]
        self.groups.append(numbers)
        self.reached.set()
        while not self.open.wait(0.005):
            if cancel.is_set():
                raise CancelledError("cancelled")
        if self.faulty & set(numbers):
            raise ValueError("a faulty picture")
        return [
            np.full((picture.tokens, WIDTH), n, np.float32)
            for picture, n in zip(pictures, numbers, strict=True)
        ]


class Asked:
    """A lease, and what its request is told."""

    def __init__(self, store: RowStore, *pictures: Prepared) -> None:
        self.pictures, self.told, self.errors = pictures, Event(), list[BaseException | None]()
        self.lease = store.lease(pictures, self._done)

    def _done(self, lease: RowsLease, error: BaseException | None) -> None:
        self.errors.append(error)
        self.told.set()

    def rows(self) -> list[float]:
        assert self.told.wait(300)
        assert self.errors == [None]
        return [float(self.lease.of(picture.content)[0, 0]) for picture in self.pictures]


@pytest.fixture
def encodes() -> Encodes:
    return Encodes()


def test_rows_are_computed_once_and_found_by_content(encodes: Encodes) -> None:
    store = RowStore(encodes, 10 * EACH, WIDTH)
    for _ in range(3):
        asked = Asked(store, prepared(1), prepared(2), prepared(1))
        assert asked.rows() == [1, 2, 1]
        asked.lease.hand_out(prepared(1).content, 5)
        asked.lease.release()
    assert store.counters == StoreCounters(asked=9, computed=2, rows=15, bytes=2 * EACH)
    store.clear()
    assert store.counters.bytes == 0
    store.close()


def test_pictures_of_one_shape_that_wait_are_encoded_together(encodes: Encodes) -> None:
    store = RowStore(encodes, 10 * EACH, WIDTH)
    encodes.open.clear()
    first = Asked(store, prepared(0))
    assert encodes.reached.wait(300)
    others = [Asked(store, prepared(n)) for n in range(1, 4)]
    encodes.open.set()
    assert [each.rows() for each in (first, *others)] == [[0], [1], [2], [3]]
    assert encodes.groups == [[0], [1, 2, 3]]
    store.close()


def test_the_least_recently_used_go_first_and_those_in_use_never(encodes: Encodes) -> None:
    store = RowStore(encodes, 2 * EACH, WIDTH)
    used = Asked(store, prepared(1))
    used.rows()
    for n in (2, 3):
        each = Asked(store, prepared(n))
        each.rows()
        each.lease.release()
        assert store.counters.bytes == 2 * EACH
    assert used.rows() == [1]
    used.lease.release()
    again = Asked(store, prepared(1), prepared(3))
    assert again.rows() == [1, 3]
    assert store.counters.computed == 3
    store.close()


def test_requests_wait_for_room_and_one_alone_may_exceed_the_budget(encodes: Encodes) -> None:
    store = RowStore(encodes, 2 * EACH, WIDTH)
    first = Asked(store, prepared(1), prepared(2))
    first.rows()
    large, small = Asked(store, *(prepared(n) for n in range(3, 7))), Asked(store, prepared(1))
    assert store.counters.bytes == 2 * EACH  # neither has room
    assert not large.told.is_set()
    assert not small.told.is_set()  # first come, first served
    first.lease.release()
    assert large.rows() == [3, 4, 5, 6]
    large.lease.release()
    assert small.rows() == [1]
    assert store.counters.bytes <= 2 * EACH
    store.close()


def test_a_cancelled_request_ends_the_encoding_only_if_nobody_else_wants_it(encodes: Encodes) -> None:
    store = RowStore(encodes, 10 * EACH, WIDTH)
    encodes.open.clear()
    first, second = Asked(store, prepared(1)), Asked(store, prepared(1))
    assert encodes.reached.wait(300)
    first.lease.release()
    encodes.open.set()
    assert second.rows() == [1]
    assert encodes.groups == [[1]]
    encodes.open.clear()
    encodes.reached.clear()
    third = Asked(store, prepared(2))
    assert encodes.reached.wait(300)
    third.lease.release()  # the encoding ends, though the gate stays closed
    encodes.reached.clear()
    fourth = Asked(store, prepared(2))
    assert encodes.reached.wait(300)
    encodes.open.set()
    assert fourth.rows() == [2]
    assert not third.told.is_set()
    store.close()


def test_a_faulty_picture_fails_alone(encodes: Encodes) -> None:
    store = RowStore(encodes, 10 * EACH, WIDTH)
    encodes.faulty = {2.0}
    encodes.open.clear()
    first = Asked(store, prepared(0))
    assert encodes.reached.wait(300)
    others = [Asked(store, prepared(n)) for n in range(1, 4)]
    mixed = Asked(store, prepared(3), prepared(2))
    encodes.open.set()
    assert first.rows() == [0]
    assert others[0].rows() == [1]
    assert others[2].rows() == [3]
    for failed in (others[1], mixed):
        assert failed.told.wait(300)
        assert [type(error) for error in failed.errors] == [ValueError]
        failed.lease.release()
    encodes.faulty = set()
    assert Asked(store, prepared(2)).rows() == [2]
    store.close()


def test_requests_that_wait_for_room_go_on_when_an_encoding_fails_that_nobody_wants(encodes: Encodes) -> None:
    def fails_first(pictures: Sequence[Prepared], cancel: Event) -> list[np.ndarray]:
        found = encodes(pictures, cancel)
        if encodes.groups == [[1, 2]]:
            assert cancel.wait(300)
            raise ValueError("a faulty encoder")
        return found

    store = RowStore(fails_first, 2 * EACH, WIDTH)
    first = Asked(store, prepared(1), prepared(2))
    assert encodes.reached.wait(300)
    second = Asked(store, prepared(3), prepared(4))
    first.lease.release()
    assert second.rows() == [3, 4]
    store.close()


@pytest.mark.fault("an encoder gives NaN", "LogitsError from the request, and nothing of it is kept")
def test_rows_that_are_not_finite_are_an_error(encodes: Encodes) -> None:
    store = RowStore(lambda pictures, cancel: [np.full((ROWS, WIDTH), np.nan, np.float32)], EACH, WIDTH)
    asked = Asked(store, prepared(1))
    assert asked.told.wait(300)
    assert [type(error) for error in asked.errors] == [LogitsError]
    assert store.counters.bytes == 0
    store.close()


@pytest.mark.fault(
    "no memory is left to look at the rows of a picture", "an error of its request; others go on"
)
def test_a_picture_without_memory_fails_alone(encodes: Encodes, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RowStore(encodes, 2 * EACH, WIDTH)
    finite = np.isfinite

    def short_of_memory(rows: np.ndarray) -> np.ndarray:
        monkeypatch.setattr(np, "isfinite", finite)
        raise MemoryError

    monkeypatch.setattr(np, "isfinite", short_of_memory)
    first = Asked(store, prepared(1))
    assert first.told.wait(300)
    assert [type(error) for error in first.errors] == [MemoryError]
    second = Asked(store, prepared(2))
    assert second.told.wait(300)
    assert second.errors == [None]
    store.close()


def test_closing_tells_all_that_wait(encodes: Encodes) -> None:
    store = RowStore(encodes, EACH, WIDTH)
    encodes.open.clear()
    asked = [Asked(store, prepared(n)) for n in range(3)]
    assert encodes.reached.wait(300)
    store.close()
    for each in asked:
        assert each.told.wait(300)
        assert [type(error) for error in each.errors] == [ClosedError]
    with pytest.raises(ClosedError):
        store.lease([prepared(1)], lambda lease, error: None)


def test_leases_of_many_threads_leave_nothing_behind(encodes: Encodes) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store = RowStore(encodes, 3 * EACH, WIDTH)

    def request(n: int) -> None:
        rng = np.random.default_rng(n)
        for _ in range(30):
            asked = Asked(store, *(prepared(int(k)) for k in rng.integers(0, 6, 1 + n % 3)))
            if rng.random() < 0.3:
                asked.lease.release()
                continue
            assert asked.rows() == [float(picture.pixels.flat[0]) for picture in asked.pictures]
            asked.lease.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(request, range(16)))
    assert store.counters.bytes <= 3 * EACH
    store.clear()
    assert store.counters.bytes == 0
    store.close()

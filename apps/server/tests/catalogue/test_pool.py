"""The pool: one load for concurrent requests, room for the next model, and never a model in use closed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from backbay import AllocationStatus, BackendMemory, DeviceMemory, Memory, NoMemoryError
from backbay_server.catalogue import Catalogue, CatalogueEntry, ModelPool, pool
from backbay_server.catalogue import catalogue as catalogue_module
from backbay_server.errors import BusyError, ModelNotFoundError, UnavailableError


class FakeLLM:
    def __init__(self, entry: CatalogueEntry) -> None:
        self.entry, self.closed = entry, False

    def close(self) -> None:
        self.closed = True


class Loader:
    """Loads models that do nothing; a held gate stops it in the midst."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.made: list[FakeLLM] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.room = 99

    def __call__(
        self, entry: CatalogueEntry, progress: Callable[[float], None], cancel: threading.Event
    ) -> Any:
        self.loads.append(entry.name)
        progress(0.5)
        while not self.gate.wait(0.01):
            if cancel.is_set():
                raise RuntimeError("cancelled")
        if self.error is not None:
            raise self.error
        if sum(not each.closed for each in self.made) >= self.room:
            raise no_memory()
        self.made.append(FakeLLM(entry))
        return self.made[-1]


def no_memory() -> NoMemoryError:
    return NoMemoryError(
        "no room", BackendMemory(Memory(1, AllocationStatus.Failed), DeviceMemory("CPU", "CPU"))
    )


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    return tmp_path


@pytest.fixture
def always_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at files and folders holds for a while."""
    monkeypatch.setattr(catalogue_module, "FRESH", 0.0)
    monkeypatch.setattr(pool, "FRESH", 0.0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def run(
    test: Callable[[ModelPool], Awaitable[None]], catalogue: Catalogue, loader: Loader, **options: Any
) -> None:
    async def whole() -> None:
        pool = ModelPool(catalogue, loader, **options)
        try:
            await asyncio.wait_for(test(pool), PATIENCE)
        finally:
            loader.gate.set()
            await asyncio.wait_for(pool.close(), PATIENCE)
        assert all(each.closed for each in loader.made)

    asyncio.run(whole())


def test_concurrent_requests_cause_one_load(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        loader.gate.clear()
        asking = [asyncio.create_task(pool.lease("a")) for _ in range(20)]
        await until(lambda: [held.status for held in pool.held()] == ["loading"])
        loader.gate.set()
        leases = await asyncio.gather(*asking)
        assert loader.loads == ["a"]
        assert len({id(lease.llm) for lease in leases}) == 1

    run(test, Catalogue([], [str(folder)]), loader)


def test_a_model_waits_for_the_requests_of_another(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        first = await pool.lease("a")
        second = asyncio.create_task(pool.lease("b"))
        await asyncio.sleep(0.05)
        assert not second.done()
        assert not first.llm.closed  # type: ignore[attr-defined]
        third = asyncio.create_task(pool.lease("a"))  # stands in line: else `b` might wait forever
        await asyncio.sleep(0.05)
        assert not third.done()
        first.release()
        first.release()
        with await second as lease:
            assert lease.name == "b"
            assert first.llm.closed  # type: ignore[attr-defined]
            assert not third.done()
        (await third).release()
        assert loader.loads == ["a", "b", "a"]

    run(test, Catalogue([], [str(folder)]), loader)


def test_a_model_that_loads_is_not_closed_for_another(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        loader.gate.clear()
        first, second = (asyncio.create_task(pool.lease(name)) for name in "ab")
        await until(lambda: loader.loads == ["a"])
        loader.gate.set()
        with await first as lease:
            await asyncio.sleep(0.05)
            assert not lease.llm.closed  # type: ignore[attr-defined]
        (await second).release()

    run(test, Catalogue([], [str(folder)]), loader)


def test_the_model_that_was_used_longest_ago_leaves(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        for name in "abac":
            (await pool.lease(name)).release()
        assert [each.entry.name for each in loader.made if not each.closed] == ["a", "c"]

    run(test, Catalogue([], [str(folder)]), loader, max_loaded=2)


def test_models_leave_when_memory_is_wanted(folder: Path, loader: Loader) -> None:
    loader.room = 1

    async def test(pool: ModelPool) -> None:
        first = await pool.lease("a")
        second = asyncio.create_task(pool.lease("b"))
        await asyncio.sleep(0.05)
        assert not first.llm.closed  # type: ignore[attr-defined]
        first.release()
        (await second).release()
        loader.room = 0
        with pytest.raises(NoMemoryError):
            await pool.lease("c")
        assert not [*pool.held()]

    run(test, Catalogue([], [str(folder)]), loader, max_loaded=3)


def test_a_fault_of_loading_reaches_all_who_wait_and_the_next_tries_again(
    folder: Path, loader: Loader
) -> None:
    async def test(pool: ModelPool) -> None:
        loader.error = ValueError("damaged")
        loader.gate.clear()
        asking = [asyncio.create_task(pool.lease("a")) for _ in range(3)]
        await until(lambda: [held.users for held in pool.held()] == [3])
        loader.gate.set()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert [str(each) for each in found] == ["damaged"] * 3
        loader.error = None
        (await pool.lease("a")).release()
        assert loader.loads == ["a", "a"]

    run(test, Catalogue([], [str(folder)]), loader)


def test_who_waits_for_a_model_may_leave(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        first = await pool.lease("a")
        second = asyncio.create_task(pool.lease("b"))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0.05)
        first.release()
        (await pool.lease("a")).release()
        assert "b" not in loader.loads

    run(test, Catalogue([], [str(folder)]), loader)


def test_only_so_many_may_wait(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        loader.gate.clear()
        waiting = asyncio.create_task(pool.lease("a"))
        await until(lambda: bool(loader.loads))
        with pytest.raises(BusyError):
            await pool.lease("a")
        loader.gate.set()
        (await waiting).release()

    run(test, Catalogue([], [str(folder)]), loader, most_waiting=1)


def test_nobody_waits_for_longer_than_the_limit(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        loader.gate.clear()
        pool.preload()
        await until(lambda: bool(loader.loads))
        with pytest.raises(UnavailableError, match="still loading"):
            await pool.lease("a")

    run(test, Catalogue([str(folder / "a.gguf")]), loader, patience=0.1)


def test_closing_ends_what_waits(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        loader.gate.clear()
        waiting = [asyncio.create_task(pool.lease(name)) for name in "ab"]
        await asyncio.sleep(0.05)
        await pool.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [UnavailableError] * 2
        with pytest.raises(UnavailableError):
            await pool.lease("c")

    run(test, Catalogue([], [str(folder)]), loader)


@pytest.mark.fault(
    "the file of a loaded model is deleted", "the model goes on, and is unknown once it has left"
)
@pytest.mark.usefixtures("always_looked_at")
def test_a_deleted_file_ends_no_model_in_memory(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        (await pool.lease("a")).release()
        (folder / "a.gguf").unlink()
        (await pool.lease("a")).release()
        assert "a" in [each.name for each in pool.listed()]
        (await pool.lease("b")).release()
        with pytest.raises(ModelNotFoundError, match="'a'"):
            await pool.lease("a")

    run(test, Catalogue([], [str(folder)]), loader)


@pytest.mark.fault(
    "a model's file is replaced", "running requests end on the old one, new requests get the new one"
)
@pytest.mark.usefixtures("always_looked_at")
def test_a_replaced_file_is_loaded_anew(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        old = await pool.lease("a")
        (folder / "new").write_bytes(b"GGUF again")
        (folder / "new").replace(folder / "a.gguf")
        new = asyncio.create_task(pool.lease("a"))
        await asyncio.sleep(0.05)
        assert not old.llm.closed  # type: ignore[attr-defined]
        old.release()
        with await new as lease:
            assert lease.llm is not old.llm
        assert loader.loads == ["a", "a"]

    run(test, Catalogue([str(folder / "a.gguf")]), loader)


def test_named_models_are_loaded_at_once(folder: Path, loader: Loader) -> None:
    async def test(pool: ModelPool) -> None:
        loader.gate.clear()
        pool.preload()
        assert not pool.ready
        loader.gate.set()
        (await pool.lease("a")).release()
        assert pool.ready
        assert loader.loads == ["a"]

    run(test, Catalogue([str(folder / "a.gguf"), str(folder / "b.gguf")]), loader)


def test_a_model_waits_for_room_while_another_is_being_closed(folder: Path, loader: Loader) -> None:
    loader.room = 1
    closing, go_on = threading.Event(), threading.Event()

    async def test(pool: ModelPool) -> None:
        with await pool.lease("a") as lease:
            first = lease.llm
        close = first.close

        def slow() -> None:
            closing.set()
            go_on.wait(300)
            close()

        first.close = slow  # type: ignore[method-assign]
        asking = [asyncio.create_task(pool.lease("b"))]
        await until(closing.is_set)
        asking.append(asyncio.create_task(pool.lease("c")))
        await until(lambda: "c" in loader.loads)
        await asyncio.sleep(0.05)  # c is refused meanwhile
        go_on.set()
        for each in asyncio.as_completed(asking):
            (await each).release()

    run(test, Catalogue([], [str(folder)]), loader, max_loaded=3)


class LateLoader(Loader):
    """Says of b that there is no room only when another model has left since."""

    def __init__(self) -> None:
        super().__init__()
        self.left = threading.Event()

    def __call__(
        self, entry: CatalogueEntry, progress: Callable[[float], None], cancel: threading.Event
    ) -> Any:
        if entry.name == "b" and not self.left.is_set():
            self.left.wait(300)
            raise no_memory()
        return super().__call__(entry, progress, cancel)


def test_a_model_that_found_no_room_is_tried_again_if_another_has_left_since(folder: Path) -> None:
    loader = LateLoader()

    async def test(pool: ModelPool) -> None:
        with await pool.lease("a"):
            asking = asyncio.create_task(pool.lease("b"))
            await until(lambda: any(held.status == "loading" for held in pool.held()))
        (first,) = [held for held in pool.held() if held.entry.name == "a"]
        pool._leave(first)
        await first.gone.wait()
        loader.left.set()
        (await asking).release()

    run(test, Catalogue([], [str(folder)]), loader, max_loaded=2)


@pytest.mark.parametrize("seed", range(20))
def test_any_life_keeps_the_rules(seed: int, folder: Path, loader: Loader) -> None:
    """Clients lease, hold, and leave at random: no model in use is closed, no more are open than may be, all are served."""
    chance = random.Random(seed)
    most = chance.choice([1, 1, 2, 3])
    loader.room = chance.choice([1, 2, 99])
    served = 0

    async def client(pool: ModelPool) -> None:
        nonlocal served
        for _ in range(10):
            asking = asyncio.create_task(pool.lease(chance.choice("abc")))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.01)
                asking.cancel()
            try:
                with await asking as lease:
                    for _ in range(chance.randrange(3)):
                        await asyncio.sleep(chance.random() * 0.002)
                        assert not lease.llm.closed  # type: ignore[attr-defined]
                    assert sum(not each.closed for each in loader.made) <= min(most, loader.room)
                    served += 1
            except asyncio.CancelledError:
                assert asking.cancelled()

    async def test(pool: ModelPool) -> None:
        await asyncio.gather(*(client(pool) for _ in range(12)))
        assert all(not held.users for held in pool.held())

    run(test, Catalogue([], [str(folder)]), loader, max_loaded=most)
    assert served > 60

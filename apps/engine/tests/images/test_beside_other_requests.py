"""Pictures beside other requests: nobody waits for another one's picture, and equal ones are encoded once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from seeing_models import ENDLESS, Files, Gate, opened
from small_vision import picture

from backbay import ClosedError
from backbay_engine import Image


def test_other_requests_go_on_while_a_picture_is_encoded(files: Files, gate: Gate) -> None:
    with opened(files, "gemma3") as llm:
        seeing = llm.submit(["a", Image(picture(20, 20))], max_tokens=3, **ENDLESS)
        assert gate.reached.wait(300)
        assert len(llm.generate("text", max_tokens=20, **ENDLESS).tokens) == 20
        assert not seeing.done
        gate.open.set()
        assert len(seeing.result().tokens) == 3
        assert seeing.result().timings.pictures > 0


def test_other_requests_go_on_while_a_picture_is_prepared(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    rgb = Image.rgb

    def held(image: Image) -> Any:
        reached.set()
        assert go_on.wait(300)
        return rgb(image)

    monkeypatch.setattr(Image, "rgb", held)
    with opened(files, "gemma3") as llm:
        seeing = llm.submit(["a", Image(picture(20, 20))], max_tokens=3, **ENDLESS)
        assert reached.wait(300)
        assert len(llm.generate("text", max_tokens=20, **ENDLESS).tokens) == 20
        go_on.set()
        assert len(seeing.result().tokens) == 3


def test_two_requests_with_one_picture_encode_it_once(files: Files, gate: Gate) -> None:
    with opened(files, "llava") as llm:
        handles = [llm.submit([f"{n}", Image(picture(20, 20))], max_tokens=3, **ENDLESS) for n in range(3)]
        assert gate.reached.wait(300)
        gate.open.set()
        for handle in handles:
            assert len(handle.result().tokens) == 3
        assert llm.store.counters[:2] == (3, 1)


@pytest.mark.fault("a model is closed while a picture is encoded", "ClosedError from result()")
def test_closing_ends_requests_on_their_way(files: Files, gate: Gate) -> None:
    llm = opened(files, "llava")
    handle = llm.submit(["a", Image(picture(20, 20))], max_tokens=3)
    assert gate.reached.wait(300)
    closing = threading.Thread(target=llm.close)
    closing.start()
    with pytest.raises(ClosedError):
        handle.result(300)
    gate.open.set()
    closing.join(300)
    assert not closing.is_alive()
    with pytest.raises(ClosedError):
        llm.embed_image(picture(20, 20))


def test_the_store_keeps_to_its_budget(files: Files) -> None:
    rows = 4 * 16 * 32
    with opened(files, "llava", store_bytes=2 * rows) as llm:
        for n in range(5):
            llm.generate([Image(picture(20, 20, n)), "?"], max_tokens=1)
            assert llm.store.counters.bytes <= 2 * rows
        assert llm.store.counters.computed == 5
        llm.embed_image(picture(20, 20, 4))
        assert llm.store.counters.computed == 5
        llm.embed_image(picture(20, 20, 0))
        assert llm.store.counters.computed == 6
        prompt = [Image(picture(20, 20, n)) for n in range(4)]
        assert (
            len(llm.generate([*prompt, "?"], max_tokens=2, **ENDLESS).tokens) == 2
        )  # alone, beyond the budget
        assert llm.store.counters.bytes <= 2 * rows

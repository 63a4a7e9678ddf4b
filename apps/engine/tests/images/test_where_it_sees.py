"""Where a model that sees runs: backends, workers, memory, forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from seeing_models import ENDLESS, Files, opened
from small_vision import KINDS, picture
from small_vision_texts import CONTEXT

import backbay
from backbay_engine import Image, ImageError

BACKENDS = sorted(backbay.backends())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(2)
def test_a_worker_sees_the_same(files: Files, kind: str) -> None:
    shown = Image(picture(20, 30))
    prompt = ["Look ", shown, " here"]
    said = [
        {"role": "user", "content": [{"type": "image", "image": shown}, {"type": "text", "text": "What?"}]}
    ]
    found = []
    for worker in (False, True):
        with opened(files, kind, worker=worker) as llm:
            answers = llm.generate(prompt, max_tokens=4, **ENDLESS), llm.chat(said, max_tokens=4, **ENDLESS)
            numbers = llm.logits(prompt), llm.embed_image(shown), llm.prepare(shown).pixels
            found.append(
                ([a.tokens for a in answers], llm.encode(prompt), numbers, llm.store.counters, llm.modalities)
            )
            with pytest.raises(ImageError):
                llm.generate(["a", b"no picture"])
    here, there = found
    assert here[:2] == there[:2]
    assert here[3:] == there[3:]
    for one, other in zip(here[2], there[2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_progress_goes_from_one_file_to_the_other(files: Files) -> None:
    seen: list[float] = []
    with opened(files, "llava", progress=seen.append):
        assert seen == sorted(seen)
        assert seen[-1] == 1.0


def test_a_step_grows_to_hold_a_picture_whose_tokens_see_each_other(files: Files) -> None:
    with opened(files, "gemma3", batch=2) as llm:
        assert llm.batch == 4
        assert llm.context <= CONTEXT
        llm.logits(["a", Image(picture(20, 20))])


FORKING = """
import os, sys, threading
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from small_vision import picture, write_small_vision
from backbay import ClosedError
from backbay_engine import Image, load
from backbay_engine.media.encoder import MediaEncoder

model, projector = write_small_vision(Path(sys.argv[2]), "llava")
llm = load(model, "cpu_ref", projector=projector, context=128)
reached, go_on, network = threading.Event(), threading.Event(), MediaEncoder._encoded

def held(*given, **how):  # the encoder's lock is held
    reached.set()
    assert go_on.wait(300)
    return network(*given, **how)

MediaEncoder._encoded = held
running = llm.submit(["a", Image(picture(20, 20))], max_tokens=2, temperature=0)
assert reached.wait(300)
child = os.fork()
if child == 0:
    calls = {
        "running": lambda: running.result(300),
        "embed": lambda: llm.embed_image(picture(9, 9)),
        "prepare": lambda: llm.prepare(picture(9, 9)),
        "store": lambda: llm.store.counters,
        "submit": lambda: llm.submit(["a", Image(picture(20, 20))]),
    }
    for name, call in calls.items():
        try:
            call()
            print(name, "worked", flush=True)
        except ClosedError as error:
            print(name, "ok" if "fork" in str(error) else error, flush=True)
    llm.close()
    sys.exit(7)
_, status = os.waitpid(child, 0)
print("exit", os.waitstatus_to_exitcode(status), flush=True)
go_on.set()
print("parent", len(running.result(300).tokens), flush=True)
llm.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.fault(
    "a process forks while a picture is encoded", "ClosedError naming fork, in the child alone"
)
def test_a_forked_child_is_told_and_exits(tmp_path: Path) -> None:
    here = str(Path(__file__).parents[1] / "inputs")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, here, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    names = ("running", "embed", "prepare", "store", "submit")
    assert done.stdout.splitlines() == [*(f"{name} ok" for name in names), "exit 7", "parent 2"], done.stderr

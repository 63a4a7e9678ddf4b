"""Requests of all kinds at once: each gets what it gets alone, and nothing stays behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from constraints import Among
from small_llama import EOS, WORDS, write_small_llama

import backbay
from backbay_engine import LLM, Completion, DeadlineError, QueueFullError, TokenStep, load

SIZES: dict[str, Any] = {"context": 64, "parallel": 4, "batch": 24, "num_threads": 1, "kv_dtype": "f32"}
WHERE = [*sorted(backbay.backends()), "worker"]
PROMPTS = ["a", "a common beginning, and one end", "a common beginning, and another", "zzz " * 8]
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 3, "temperature": 1.2},
    {"seed": 4, "stop": ["a", "\u00e9"], "logprobs": 1},
    {"seed": 5, "repetition_penalty": 1.3, "penalty_window": 5},
    {"temperature": 0, "logit_bias": {EOS: float("-inf"), 0xE2: 4.0}},
]


@pytest.fixture(scope="module", params=WHERE)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path: Path = write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")
    worker = request.param == "worker"
    backend = "cpu_ref" if worker else request.param
    with load(path, backend, **SIZES, queue=8, worker=worker) as opened:
        yield opened


class Requests:
    """Sends requests of all kinds, and notes what differs from the answers that each gets alone."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.wrong, self.done = llm, list[str](), 0
        self.alone = {
            (p, o): llm.generate(prompt, max_tokens=10, **options)
            for p, prompt in enumerate(PROMPTS)
            for o, options in enumerate(OPTIONS)
        }
        self.scores = [[each.token for each in llm.score_tokens(prompt)] for prompt in PROMPTS]

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        kinds = [
            self.whole,
            self.resumed,
            self.stepwise,
            self.cancelled,
            self.scored,
            self.constrained,
            self.late,
        ]
        for _ in range(12):
            key = (chance.randrange(len(PROMPTS)), chance.randrange(len(OPTIONS)))
            try:
                chance.choice(kinds)(key, chance)
            except QueueFullError:
                continue
            except Exception as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
            self.done += 1

    def expect(self, found: Completion, key: tuple[int, int], what: str) -> None:
        expected = self.alone[key]
        if (found.text, found.tokens, found.stop) != (expected.text, expected.tokens, expected.stop):
            self.wrong.append(f"{what}: {found} where {expected}")

    def asked(self, key: tuple[int, int], **more: Any) -> Any:
        return self.llm.submit(PROMPTS[key[0]], max_tokens=10, **OPTIONS[key[1]], **more)

    def whole(self, key: tuple[int, int], chance: random.Random) -> None:
        self.expect(self.asked(key, reuse=chance.random() < 0.5).result(300), key, "whole")

    def resumed(self, key: tuple[int, int], chance: random.Random) -> None:
        tokens = self.alone[key].tokens
        handle = self.asked(key, resume=tokens[: chance.randint(0, len(tokens))])
        self.expect(handle.result(300), key, "resumed")

    def stepwise(self, key: tuple[int, int], _chance: random.Random) -> None:
        told: list[Any] = []
        over = threading.Event()

        def on_step(what: Any) -> None:
            told.append(what)
            if not isinstance(what, TokenStep):
                over.set()

        handle = self.asked(key, on_step=on_step)
        assert over.wait(300)
        self.expect(told.pop(), key, "told")
        if "".join(step.text for step in told) != "".join(handle):
            self.wrong.append("the steps that were told differ")

    def cancelled(self, key: tuple[int, int], _chance: random.Random) -> None:
        handle = self.asked(key)
        next(handle.steps(), None)
        handle.cancel()
        found = handle.result(300)
        if found.tokens != self.alone[key].tokens[: len(found.tokens)]:
            self.wrong.append("a cancelled answer is another")

    def scored(self, key: tuple[int, int], chance: random.Random) -> None:
        scores = self.llm.score_tokens(PROMPTS[key[0]], top=chance.randint(0, 2))
        if [each.token for each in scores] != self.scores[key[0]]:
            self.wrong.append("scores differ")

    def constrained(self, key: tuple[int, int], _chance: random.Random) -> None:
        digits = Among(range(48, 58), WORDS)
        answer = self.llm.generate(PROMPTS[key[0]], max_tokens=6, constraint=digits)
        if not answer.text.isdigit():
            self.wrong.append(f"{answer.text!r} is no number")

    def late(self, key: tuple[int, int], chance: random.Random) -> None:
        with suppress(DeadlineError):
            self.expect(self.asked(key, deadline=chance.choice([0.001, 0.05])).result(300), key, "late")


@pytest.mark.few(2)
def test_requests_of_all_kinds_get_what_each_gets_alone(llm: LLM) -> None:
    requests = Requests(llm)
    threads = [threading.Thread(target=requests.run, args=(seed,)) for seed in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert requests.wrong == []
    assert requests.done > 30
    llm.forget()  # waits until nothing runs
    state = llm.state()
    assert (state.busy, state.waiting) == (0, 0)
    assert all(slot.tokens == 0 for slot in state.slots)
    handles = [llm.submit("x", max_tokens=1) for _ in range(12)]  # every place is free again
    assert all(handle.result(300).tokens for handle in handles)

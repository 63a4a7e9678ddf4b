"""The speed of a model: a prompt, and steps of all its sequences; of a model without steps, texts.

A child process loads the model on one backend, and tells its speed.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import median
from threading import Event
from time import perf_counter
from typing import NoReturn, TypeAlias

import numpy as np

from backbay import BackbayError, BackendUnavailableError
from backbay.internals import reporter

from ..local.opening.placement import open_port
from ..port.contract import Port
from ..port.options import LoadOptions, Path
from ..port.questions import Embed
from ..runner.requests.answer import TokenStep
from ..runner.requests.request import Generate, options_of

Clock: TypeAlias = Callable[[], float]

PROMPT, SHORT = 64, 8  # tokens of the prompt that is timed, and of those before the steps that are timed
PROMPTS, STEPS = 3, 12  # how many are timed
PATIENCE = 4.0  # seconds for each kind; then those that are done count
ROOM = PROMPT + STEPS  # tokens of each sequence
PASSING = (MemoryError, OSError, BackendUnavailableError)  # errors that another trial may not meet
REQUEST_PROMPT, REQUEST_ANSWER = 256, 128  # tokens of the request that speeds are compared by


@dataclass(frozen=True)
class TrialSpeed:
    """The speed of a model in a trial: the seconds that the usual load takes, and rates such as tokens per second."""

    seconds: float
    rates: dict[str, float]


def measure_speed(port: Port, parallel: int, clock: Clock = perf_counter) -> TrialSpeed:
    """The speed of a model that is loaded for so many sequences."""
    facts = port.facts
    rng = np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        drawn: list[int] = rng.integers(0, facts.vocabulary_size, count).tolist()
        return drawn

    prompt = max(1, min(PROMPT, facts.context - 1, facts.batch))
    if not facts.generates:
        texts = [ids(prompt) for _ in range(parallel)]
        seconds = _typical(lambda: port.ask(Embed(texts)), clock)
        return TrialSpeed(seconds, {"texts": parallel / seconds})
    read = _typical(lambda: _answer(port, ids(prompt)), clock) / prompt
    step = _step(port, [ids(min(SHORT, prompt)) for _ in range(parallel)], clock)
    seconds = parallel * REQUEST_PROMPT * read + REQUEST_ANSWER * step
    return TrialSpeed(seconds, {"prompt": 1 / read, "answers": parallel / step})


def _typical(work: Callable[[], object], clock: Clock) -> float:
    """The median time of some work; the first time does not count, unless it took too long to do it again."""
    begun, times = clock(), list[float]()
    while len(times) <= PROMPTS:
        before = clock()
        work()
        times.append(clock() - before)
        if clock() - begun > PATIENCE:
            break
    return median(times[1:] or times)


def _answer(port: Port, prompt: Sequence[int]) -> None:
    options = options_of({"max_tokens": 1, "temperature": 0, "reuse": False}, port.facts.context)
    port.submit(Generate(prompt, options)).result()


def _step(port: Port, prompts: Sequence[Sequence[int]], clock: Clock) -> float:
    """The median time between tokens of the last sequence, while the others have theirs in the same steps."""
    ends = () if port.tokenizer is None else port.tokenizer.end_ids
    context = port.facts.context
    endless = {"temperature": 0, "reuse": False, "logit_bias": dict.fromkeys(ends, -math.inf)}
    options = options_of(endless, context)
    few = replace(options, max_tokens=min(STEPS, context - len(prompts[-1])))
    begun, times, enough = clock(), list[float](), Event()

    def note(step: object) -> None:
        if isinstance(step, TokenStep):
            times.append(clock())
        if len(times) > 2 or not isinstance(step, TokenStep):
            enough.set()

    others = [port.submit(Generate(prompt, options)) for prompt in prompts[:-1]]
    last = port.submit(Generate(prompts[-1], few), note)
    with suppress(TimeoutError):
        last.result(PATIENCE)
    enough.wait()
    for handle in (last, *others):
        handle.cancel()
    for handle in (last, *others):
        handle.result()
    return median(np.diff(times).tolist()) if len(times) > 1 else clock() - begun


@dataclass(frozen=True)
class TrialTask:
    """The model that a child measures, and its backend."""

    path: Path
    backend: str
    options: LoadOptions


def main() -> NoReturn:
    """Measure the task that standard input holds, tell the result, and end at once."""
    tell = reporter()
    try:
        tell(speed=asdict(run_task(pickle.load(sys.stdin.buffer), lambda: tell(loaded=True))))  # noqa: S301
    except Exception as error:  # noqa: BLE001  a plugin may raise anything
        text = " ".join(str(error).split())
        told = text if isinstance(error, BackbayError) and text else f"{type(error).__name__}: {text}"
        tell(why_not=told, lasts=not isinstance(error, PASSING))
    os._exit(0)  # without waiting for threads that a library left behind


def run_task(task: TrialTask, loaded: Callable[[], None]) -> TrialSpeed:
    """The speed of a task; `loaded` is called once the model can answer."""
    port = open_port(task.path, task.backend, task.options)
    try:
        port.load()
        loaded()
        return measure_speed(port, task.options.parallel)
    finally:
        port.close()

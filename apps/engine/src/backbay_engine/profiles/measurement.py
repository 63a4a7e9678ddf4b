"""Measuring: a model's steps as ever, then profiled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from backbay import OptionError
from backbay.internals import ProfiledRun

from ..llm import LLM
from .op_costs import PeakRates, multiplications
from .phase import ProfilePhase, ProfileRuns, ProfileSetup, phase_of

LONG = 1e-3  # seconds of a product that tells a rate: clocks are too coarse for shorter ones
TRIES = 5  # of steps: where the system does not let them be submitted in time, the first sequence is alone
SPARE = 4  # steps in which only some of the sequences take part


@dataclass(frozen=True)
class Workload:
    """What is measured: a prompt, and steps of sequences at the same time after a past; 0 leaves one of them out."""

    prompt: int
    depth: int
    parallel: int
    steps: int

    @property
    def generated(self) -> int:
        """Tokens of each sequence, so that enough steps have all of them."""
        return 2 * self.steps + SPARE + self.parallel

    @property
    def context(self) -> int:
        """The tokens that a sequence must have room for."""
        return max(self.prompt, self.depth + self.generated if self.steps else 0) + 1


def measure_phases(llm: LLM, load: Workload, walls: PeakRates) -> tuple[list[ProfilePhase], PeakRates]:
    """The profiles of the prompt and of the steps; and the walls, if some product was faster than they say."""
    found: list[tuple[str, ProfileRuns, ProfileRuns]] = []
    if load.prompt:

        def prompt() -> None:
            llm.generate(_ids(llm, load.prompt, 0), max_tokens=1, temperature=0, reuse=False)

        def whole(runs: Sequence[ProfiledRun]) -> ProfileRuns:  # as one step
            return ProfileRuns(1, runs[-1].begun + runs[-1].seconds - runs[0].begun, runs)

        found.append((f"prompt of {load.prompt}", *_both(llm, 1, prompt, whole)))
    if load.steps:
        both = _both(llm, load.steps, partial(_steps, llm, load), partial(_alike, load))
        found.append((f"step of {load.parallel} after {load.depth}", *both))
    backend = llm.backend
    host = backend.devices()[0].id  # the first device is the CPU
    walls = raise_rates(walls, [run for _, _, profiled in found for run in profiled.runs], host)
    machine = ProfileSetup(backend.blocks.count, host, walls)
    return [phase_of(name, usual.step, profiled, machine) for name, usual, profiled in found], walls


def raise_rates(walls: PeakRates, runs: Iterable[ProfiledRun], host: str) -> PeakRates:
    """The walls, with the rate of the fastest long product on the host if it is higher than that of NumPy."""
    multiplying = walls.multiplying
    for run in runs:
        took: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for timing in run.timings:  # a node may have several: the columns of a product become codes first
            if timing.device == host:
                took[tuple(timing.nodes)] += timing.seconds
        for nodes, seconds in took.items():
            if seconds >= LONG:
                rate = sum(multiplications(run.graph.nodes[index]) for index in nodes) / seconds
                multiplying = max(multiplying, rate)
    return replace(walls, multiplying=multiplying)


def _both(
    llm: LLM,
    steps: int,
    work: Callable[[], None],
    chosen: Callable[[Sequence[ProfiledRun]], ProfileRuns | None],
) -> tuple[ProfileRuns, ProfileRuns]:
    """The work as ever, and profiled; again where fewer of its steps than asked for were chosen."""

    def measured(*, nodes: bool) -> ProfileRuns:
        best: ProfileRuns | None = None
        for _ in range(TRIES):
            with llm.backend.profiling(nodes=nodes) as runs:
                work()  # compiles
                begun = perf_counter()
                work()
            found = chosen([run for run in runs if run.begun >= begun])
            if found is not None and (best is None or found.steps > best.steps):
                best = found
            if best is not None and best.steps >= steps:
                return best
        if best is None:
            raise OptionError("no step had a token of each of the sequences; try more --steps")
        return best

    return measured(nodes=False), measured(nodes=True)


def _steps(llm: LLM, load: Workload) -> None:
    endless: dict[str, Any] = {"logit_bias": dict.fromkeys(llm.end_ids, float("-inf"))}
    ids = [_ids(llm, load.depth, number) for number in range(load.parallel)]
    handles = [llm.submit(each, max_tokens=load.generated, temperature=0, **endless) for each in ids]
    for handle in handles:
        handle.result()


def _alike(load: Workload, runs: Sequence[ProfiledRun]) -> ProfileRuns | None:
    """The latest steps, if any, that had a token of each sequence; a step lasts until the next begins."""
    followed = [(run, later.begun - run.begun) for run, later in pairwise(runs)]
    of_all = [each for each in followed if each[0].graph.batch_size == load.parallel][-load.steps :]
    if not of_all:
        return None
    mean = sum(seconds for _, seconds in of_all) / len(of_all)
    return ProfileRuns(len(of_all), mean, [run for run, _ in of_all])


def _ids(llm: LLM, count: int, number: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(number).integers(0, llm.vocabulary_size, count).tolist()
    return drawn

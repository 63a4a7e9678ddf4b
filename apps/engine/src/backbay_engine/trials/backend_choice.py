"""The choice among backends that rank the same: the fastest, as a trial finds once for a model and a load."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np

import backbay
from backbay import BackendEntry, BackendParams, Choice, OptionError, choose
from backbay.discovery import BackendSpeed, SpeedTrial, TrialFile, is_auto, open_model, version_of
from backbay.gguf import ModelFile
from backbay.internals import human_bytes, usable_cores
from backbay.plugin import Cancel, check_cancel

from ..arguments import MOST_SEQUENCES, whole_number
from ..port.options import LoadOptions, Path
from ..worker.setup_messages import sendable_option
from .model_speed import ROOM, Clock, TrialTask
from .trial_process import TrialLimits, TrialOutcome, try_task

VARIABLE = "BACKBAY_TRIAL_SECONDS"
SECONDS = 60.0  # that a trial may take by default
BETTER = 0.95  # of the time of a backend that ranks earlier: the most that another one may take to win
SLOWER, WARM_UP = 3.0, 2.0  # a backend may take so many times the best one's measurement, and these seconds
NEWS = 3.0  # seconds after which a trial says that it runs

log = logging.getLogger(__name__)
Try: TypeAlias = Callable[[str, TrialLimits], TrialOutcome]


def fastest_backend(
    path: Path, backend: object, options: LoadOptions, cancel: Cancel | None = None, *, measuring: bool = True
) -> Choice | None:
    """The choice that "auto" makes for a model and a load; None if a backend is named.

    A trial decides among backends that rank the same, or one that was kept. If `measuring` is False, none is made.
    """
    if not is_auto(backend):
        return None
    parallel = whole_number("parallel", options.parallel, 1, MOST_SEQUENCES)
    with open_model(path) as model:  # first: trying backends takes longer
        choice, seconds = choose("auto"), trial_seconds()
        if options.params.options:
            _require_known(options.params.options, (choice.entry, *choice.equals))
        if not choice.equals or not seconds:
            return choice
        name, shape = _name(path, model), shape_digest(model)
    params = replace(sendable_option(options.params), alloc_memory=True)
    dtype = str(options.kv_dtype).lower()
    layers = repr((options.num_gpu_layers, options.main_gpu, options.tensor_split))
    kept = TrialFile(choice, name, [shape, repr(params), layers, parallel, options.batch, dtype])
    trial = kept.recall()
    if trial is None and measuring:
        attempt = _attempt(
            TrialTask(sendable_option(path), "", _short(options, params)), choice, seconds, cancel
        )
        load = f"{parallel} requests at once" if parallel > 1 else "1 request"
        with kept.found_once(lambda: check_cancel(cancel)):  # two trials at once would measure each other
            trial = kept.recall()
            if trial is None:
                trial = run_trial(name, load, (choice.entry, *choice.equals), attempt, seconds)
                kept.keep(trial)
                log.warning("%s; later loads remember it", trial.applied(choice))
    return choice if trial is None else trial.applied(choice)


def _require_known(options: Mapping[str, Any], entries: Sequence[BackendEntry]) -> None:
    """OptionError if none of these backends takes the options: no trial would find one that does."""
    refusals = list[OptionError]()
    for entry in entries:
        try:
            backbay.open(None, entry.name, BackendParams(options=options)).close()
        except OptionError as error:
            refusals.append(error)
    if len(refusals) == len(entries):
        raise refusals[0]


def trial_seconds() -> float:
    """The seconds that a trial may take, as the environment says; 0: no trial is made."""
    given = os.environ.get(VARIABLE, "")
    try:
        seconds = float(given) if given else SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise OptionError(f"{VARIABLE} must be a number of seconds, 0 for no trials, got {given!r}")
    return seconds


def run_trial(
    model: str,
    load: str,
    entries: Sequence[BackendEntry],
    attempt: Try,
    seconds: float,
    clock: Clock = time.monotonic,
) -> SpeedTrial:
    """Measure backends one after the other, the best rank first, and choose the fastest.

    Together they have so many seconds. A backend is stopped as soon as it took much longer than the best one so far.
    """
    begun, busy = clock(), is_busy()
    outcomes: list[TrialOutcome] = []
    for entry in entries:
        best = min((each for each in outcomes if each.speed is not None), key=_cost, default=None)
        longest = None if best is None else SLOWER * best.measuring + WARM_UP
        left = seconds - (clock() - begun)
        late = TrialOutcome(why_not=f"not measured: {seconds:g} s were over", lasts=False)
        outcomes.append(attempt(entry.name, TrialLimits(left, longest)) if left > 0 else late)
    chosen = outcomes[0]
    for outcome in outcomes:
        if _cost(outcome) < BETTER * _cost(chosen):
            chosen = outcome
    name = entries[outcomes.index(chosen)].name
    speeds = tuple(map(_speed, entries, outcomes))
    lasts = all(each.lasts for each in outcomes) and chosen.speed is not None and not busy
    return SpeedTrial(model, load, name, speeds, clock() - begun, time.time(), lasts)


def is_busy() -> bool:
    """Whether other processes want all cores, so that speeds tell of them, too; False where the system does not say."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] >= usable_cores()


def shape_digest(model: ModelFile) -> str:
    """A digest of what a model's speed depends on: its architecture's metadata, and its tensors' names, dtypes and shapes."""
    metadata = model.metadata
    keys = [key for key in sorted(metadata) if key.startswith(f"{metadata.architecture}.")]
    digest = hashlib.blake2b(repr(metadata.architecture).encode(), digest_size=12)
    for key in keys:
        digest.update(repr((key, np.asarray(metadata[key]).tolist())).encode())
    for name in sorted(model.tensors):
        info = model.tensors[name]
        digest.update(repr((name, info.dtype.name, info.shape)).encode())
    return digest.hexdigest()


def _attempt(task: TrialTask, choice: Choice, seconds: float, cancel: Cancel | None) -> Try:
    """The function that measures a backend; it tells once that this takes a while."""
    begun, told = time.monotonic(), False

    def waiting() -> None:
        nonlocal told
        check_cancel(cancel)
        if not told and time.monotonic() - begun > NEWS:
            told = True
            names = " and ".join(entry.name for entry in (choice.entry, *choice.equals))
            log.warning(
                "measuring once which of %s is faster for this model, for up to %g s; name a backend, or set %s, to "
                "avoid it",
                names, seconds, VARIABLE,
            )  # fmt: skip

    return lambda name, limits: try_task(replace(task, backend=name), limits, waiting)


def _cost(outcome: TrialOutcome) -> float:
    return math.inf if outcome.speed is None else outcome.speed.seconds


def _speed(entry: BackendEntry, outcome: TrialOutcome) -> BackendSpeed:
    version, speed = version_of(entry), outcome.speed
    if speed is None:
        return BackendSpeed(entry.name, version, why_not=outcome.why_not)
    return BackendSpeed(entry.name, version, speed.seconds, speed.rates)


def _short(options: LoadOptions, params: BackendParams) -> LoadOptions:
    """The options for a trial of the model alone: its caches hold no more than the trial needs."""
    context = ROOM if options.context is None else min(ROOM, options.context)
    return LoadOptions(
        context=context,
        parallel=options.parallel,
        batch=options.batch,
        kv_dtype=options.kv_dtype,
        params=params,
        num_gpu_layers=options.num_gpu_layers,
        main_gpu=options.main_gpu,
        tensor_split=options.tensor_split,
    )


def _name(path: Path, model: ModelFile) -> str:
    """What people call a model: its file, architecture and size."""
    nbytes = sum(tensor.nbytes for tensor in model.tensors.values())
    return f"{PurePath(path).name}, {model.metadata.architecture}, {human_bytes(nbytes)}"

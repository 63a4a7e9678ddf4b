"""Which backends work on this machine, why the others do not, and which backend is taken.

Each installed backend is tried again, in a child process. The last line names the backend that `backbay.open` takes.
The exit status is 0 if all backends work, 3 if only some work and one of these can be taken, and 1 if none can be taken.
"""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import numpy as np

import backbay
from backbay.discovery.installed import backends
from backbay.discovery.opening import VARIABLE, choose
from backbay.discovery.probe import ProbeResult, probe_all, sort_results
from backbay.discovery.records import SPEEDS, BackendSpeed, SpeedTrial, kept_trials
from backbay.errors import BackbayError
from backbay.memory.report import human_bytes
from backbay.types import cpu
from backbay.types.backend_declarations import DeviceInfo

from .listing import add_timeout, as_dict
from .output import add_json, say, say_json, table

NONE_USABLE, SOME_BROKEN = 1, 3


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)
    add_timeout(parser)


def run(args: Namespace) -> int:
    probed = sort_results(probe_all(backends().values(), args.timeout, again=True))
    name, usable, said = _choice(probed)
    if args.json:
        listed = [as_dict(result) for result in probed]
        trials = [asdict(trial) for trial in _trials()]
        found = {"choice": name, "usable": usable, "reason": said, "speeds": trials}
        say_json({"system": _system(), "backends": listed, **found})
    else:
        _print(probed, f"backbay.open() {'takes' if usable else 'fails:'} {said}")
    if not usable:
        return NONE_USABLE
    return 0 if all(result.works for result in probed) else SOME_BROKEN


def _choice(probed: list[ProbeResult]) -> tuple[str | None, bool, str]:
    """The backend that `backbay.open` would take, whether it works, and the reason for the choice."""
    try:
        choice = choose()
    except BackbayError as error:
        return None, False, str(error)
    (taken,) = [result for result in probed if result.entry == choice.entry] or probe_all([choice.entry])
    return choice.name, taken.works, str(choice) + (f", but {taken.reason}" if not taken.works else "")


def _system() -> dict[str, str | None]:
    try:
        decoder = f"Pillow {version('pillow')}"
    except PackageNotFoundError:
        decoder = "only arrays: files need Pillow (pip install pillow)"
    return {
        "python": f"{platform.python_version()} at {sys.executable}",
        "platform": platform.platform(),
        "cores": str(os.cpu_count()),
        "numpy": np.__version__,
        "pictures": decoder,
        "contract": str(backbay.CONTRACT_VERSION),
        VARIABLE: os.environ.get(VARIABLE),
        cpu.VARIABLE: os.environ.get(cpu.VARIABLE),
    }


def _print(probed: list[ProbeResult], conclusion: str) -> None:
    say(table(("", ""), [(key, value or "not set") for key, value in _system().items()]))
    for result in probed:
        say()
        _print_result(result)
    if trials := _trials():
        say()
        _print_trials(trials)
    say()
    say(conclusion)


def _print_result(result: ProbeResult) -> None:
    entry = result.entry
    state = "works" if result.works else "does not work"
    say(f"{entry.name} ({entry.distribution} {entry.version}): {state}")
    rows = [("  why", result.reason)] if not result.works else []
    rows += [("  device", _device(device)) for device in result.devices]
    rows += [(f"  {key}", value) for key, value in result.details.items()]
    if not result.works and result.output:
        rows.append(("  output", result.output))
    if rows:
        say(table(("", ""), rows))


def _trials() -> list[SpeedTrial]:
    """The speeds that were measured, also by other environments, of backends that are installed in this one."""
    installed = backends()
    return [trial for trial in kept_trials() if all(speed.backend in installed for speed in trial.speeds)]


def _print_trials(trials: list[SpeedTrial]) -> None:
    remedy = f"`backbay cache clear {SPEEDS}` forgets them"
    say(f"speeds of backends that rank the same, for models and loads; {remedy}:")
    rows = [
        (f"  {trial.model}", trial.load, speed.backend, *_speed(speed), trial.day)
        for trial in trials
        for speed in sorted(trial.speeds, key=lambda speed: speed.backend != trial.backend)
    ]
    say(table(("  model", "load", "backend", "seconds", "a second", "measured"), rows, right=(3,)))


def _speed(speed: BackendSpeed) -> tuple[str, str]:
    if speed.seconds is None:
        return "-", speed.why_not
    return f"{speed.seconds:.3g}", ", ".join(f"{what} {rate:.0f}" for what, rate in speed.rates.items())


def _device(device: DeviceInfo) -> str:
    said = [f"{device.id} {device.name}", *(["GPU"] if device.is_gpu else [])]
    said += [device.hardware_id] if device.hardware_id else []
    memory = {"in all": device.total_memory, "free": device.free_memory}
    said += [f"{human_bytes(size)} {what}" for what, size in memory.items() if size is not None]
    return ", ".join(said)

"""What a device computes wrongly, and how exactly it multiplies: the results of a trial in a child process.

Results are remembered for a library and a kind of device, on this machine since it was started.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from backbay import BackbayError, DType, Precision
from backbay.internals import ended_from_outside, exit_name, forced_cpu, start_helper
from backbay.plugin import CachedValue

from ..library.library import Library
from ..library.location import VARIABLE, library_stamp
from .trial_cases import PLAIN

PATIENCE = 300.0  # seconds for one case; a driver made of software compiles a shader for up to a minute
WHOLE = 1800.0  # seconds that a trial may take
NEWS = 10.0  # seconds between words about a trial
ENDINGS = 60  # of the child, after which a device is given up
DAY = 86400.0  # seconds that a verdict is kept in which a case was late: the machine may have been busy
LATE = "no answer in"
VARIABLES = ("CUDA_", "GGML_", "HIP_", "MESA_", "NVIDIA_", "ROCR_", "VK_")  # begin what drivers read
BOOT = Path("/proc/sys/kernel/random/boot_id")

PRODUCT, PRODUCT_IN_FULL, PRODUCT_OF_EXPERTS, ATTENTION = (
    "product {}",
    "product {} in full precision",
    "product {} of experts",
    "attention {}",
)
"""The names of measurements with weights, or over a cache, of a dtype."""

logger = logging.getLogger("backbay.ggml")
_known: dict[str, DeviceVerdict] = {}
_trying = True


@dataclass(frozen=True)
class DeviceVerdict:
    """The results of a trial.

    why_not    why the device cannot be used; empty if it can.
    wrong      the cases of the trial that the device computes wrongly, with what came.
    precision  the dtypes of operands and of sums, by the names of measurements above.
    tried      the cases that came to an end, right or wrong.
    heeded     whether ops are kept from the device for what the trial found.
    """

    why_not: str = ""
    wrong: Mapping[str, str] = field(default_factory=dict)
    precision: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tried: tuple[str, ...] = ()
    heeded: bool = True

    def takes(self, case: str) -> bool:
        return not self.heeded or (case in self.tried and case not in self.wrong)

    def measured(self, name: str, dtype: DType) -> Precision | None:
        found = self.precision.get(name.format(dtype))
        return None if found is None else Precision(DType[found[0].upper()], DType[found[1].upper()])


def leave_untried() -> None:
    """In this process, devices are used without a verdict: it tries them."""
    global _trying  # noqa: PLW0603 - a trial is a process of its own
    _trying = False


def verdict_of(library: Library, device: str, description: str) -> DeviceVerdict | None:
    """The verdict on a device; None in the process that tries it."""
    if not _trying:
        return None
    if description not in _known:
        _known[description] = _recalled(library, description) or _found_once(library, device, description)
    return _known[description]


def _found_once(library: Library, device: str, description: str) -> DeviceVerdict:
    """The verdict of a trial, or of another process that tries the device at this time."""
    kept, waiting = _kept(library, description), _News()

    def wait() -> None:
        waiting.tell("waiting for another process that tries %s", device)
        if time.monotonic() - waiting.begun > WHOLE + PATIENCE:
            raise BackbayError(
                f"another process tries {device}, and has come to no end; end it, and start again"
            )

    with kept.found_once(wait):
        verdict = _recalled(library, description)
        if verdict is None:
            verdict, lasts = run_trial(library, device)
            if lasts:
                kept.keep(asdict(verdict))
    return verdict


class _News:
    """Says from time to time what takes long."""

    def __init__(self) -> None:
        self.begun = self._last = time.monotonic()

    def tell(self, what: str, *values: object) -> None:
        if time.monotonic() - self._last > NEWS:
            self._last = time.monotonic()
            logger.warning(what + ", for %.0f s", *values, self._last - self.begun)


def is_known(library: Library, description: str) -> bool:
    """Whether there is a verdict already, so that no trial is needed."""
    return description in _known or _recalled(library, description) is not None


def _recalled(library: Library, description: str) -> DeviceVerdict | None:
    """The verdict of an earlier process; None if there is none, or it may be another one now."""
    kept = _kept(library, description)
    found = _parsed(kept.recall())
    if found is not None and any(what.startswith(LATE) for what in found.wrong.values()):
        return _parsed(kept.recall(DAY))
    return found


def run_trial(library: Library, device: str) -> tuple[DeviceVerdict, bool]:
    """Try a device, and tell whether the result lasts; a child that dies is started again at the next case."""
    news, results, number, children = _News(), {}, 0, 0
    with tempfile.TemporaryFile() as noise:
        while True:
            found, finished = _run_child(library, device, number, noise, news)
            results.update(found.results)
            if finished or time.monotonic() - news.begun > WHOLE or found.begun is None:
                break
            results[found.begun] = {"error": found.ending, "lasts": found.lasts}
            number, children = found.number + 1, children + 1
            if found.begun == PLAIN or children == ENDINGS:
                break
    return _judged(results, found.ending, finished)


def _judged(results: Mapping[str, Any], ending: str, finished: bool) -> tuple[DeviceVerdict, bool]:
    wrong = {
        name: str(found.get("error") or found["result"])
        for name, found in results.items()
        if "error" in found or (isinstance(found["result"], str) and found["result"])
    }
    precision = {
        name: tuple(each["result"]) for name, each in results.items() if isinstance(each.get("result"), list)
    }
    if PLAIN not in results or PLAIN in wrong:
        return DeviceVerdict(f"{PLAIN} on it fails: {wrong.get(PLAIN, ending)}"), False
    return DeviceVerdict("", wrong, precision, tuple(results)), finished and all(
        map(_lasts, results.values())
    )


def _lasts(found: Mapping[str, Any]) -> bool:
    return bool(found["lasts"]) if "lasts" in found else not ended_from_outside(0, found.get("error", ""))


@dataclass
class _Found:
    """What one child has reported."""

    results: dict[str, Any] = field(default_factory=dict)
    begun: str | None = None  # the case that it was at
    number: int = 0
    ending: str = ""
    lasts: bool = True  # whether the ending would come again


def _run_child(
    library: Library, device: str, first: int, noise: IO[bytes], news: _News
) -> tuple[_Found, bool]:
    """One child, from a case on, and whether it came to the end."""
    found = _Found()
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    noise.seek(0)
    noise.truncate()
    child = start_helper(
        _command(device, first),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=noise,
    )
    with child:
        assert child.stdout is not None
        for line in child.stdout:  # the child ends itself if a case takes too long
            said = json.loads(line)
            if "begun" not in said:
                assert found.begun is not None
                found.results[found.begun], found.begun = said, None
                continue
            found.begun, found.number = said["begun"], said["number"]
            news.tell("trying %s: %s, %d of %d", device, found.begun, found.number + 1, said["of"])
    noise.seek(0)
    output = noise.read().decode(errors="replace")
    found.ending = _ending(child.returncode, output)
    found.lasts = not ended_from_outside(child.returncode, output)
    return found, child.returncode == 0


def _command(device: str, first: int) -> list[str]:
    return [sys.executable, "-m", "backbay_ggml.device_trial_child", device, str(first)]


def _ending(code: int, output: str) -> str:
    if "Timeout (" in output:
        return f"{LATE} {PATIENCE:g} s"
    said = [line.strip() for line in output.splitlines() if line.strip()]
    return exit_name(code) + (f": {said[-1][:200]}" if said else "")


def _kept(library: Library, description: str) -> CachedValue:
    facts: list[Any] = [library.version, platform.machine(), platform.release(), *_facts()]
    facts += library_stamp(library.path, library.cpu_code)
    return CachedValue("trials", f"ggml-{description}", facts)


def _facts() -> Iterator[Any]:
    yield forced_cpu()  # results are compared with the CPU's
    yield BOOT.read_text() if BOOT.exists() else ""  # a driver is replaced with a restart
    yield sorted(pair for pair in os.environ.items() if pair[0].startswith(VARIABLES))
    for source in (
        Path(__file__),
        Path(__file__).parents[1] / "device_trial_child.py",
        *map(Path(__file__).with_name, ("trial_cases.py", "known_faults.py")),
    ):
        yield source.stat().st_mtime_ns, source.stat().st_size


def _parsed(kept: Any) -> DeviceVerdict | None:
    """A verdict that was kept; None if nothing was, or nonsense."""
    try:
        pairs = {str(name): (str(a), str(b)) for name, (a, b) in kept["precision"].items()}
        wrong = {str(name): str(what) for name, what in kept["wrong"].items()}
        return DeviceVerdict(str(kept["why_not"]), wrong, pairs, tuple(map(str, kept["tried"])))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None

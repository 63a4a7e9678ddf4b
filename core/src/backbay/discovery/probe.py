"""A probe tries an installed backend in a child process: if the backend crashes or hangs, only the child dies."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

from ..backend.helper_processes import ended_from_outside, exit_name, kill_helper, start_helper
from ..data.cache_folder import age_text
from ..types.backend_declarations import DeviceInfo
from .installed import BackendEntry
from .records import DAY, verdict_file

TIMEOUT = 20.0  # seconds; starting a GPU's library can take several
GRACE = 5.0  # further seconds, in which the child itself can report where it hangs
NEWS = 10.0  # seconds between words about a backend that needs longer
HUNG = 600.0  # seconds for which a first hang is remembered: the machine may have been busy
GROWTH, MOST_GROWN = 4, 4  # each further hang is remembered so many times as long; after so many, for a day
PATIENCE = 1.0  # seconds without a word about what is waited for
_CHILD = (
    "import json, sys; request = json.load(sys.stdin); sys.path[:] = request['path']; "
    "from backbay.discovery.probe_child import main; main(request)"
)


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe.

    reason    why the backend does not work; empty if it works.
    details   the lines of `Backend.diagnose`.
    kernels   the ops that it has kernels for; None if it could not be loaded.
    output    the end of the plugin's output to stdout and stderr.
    died      whether the child hung, crashed, or ended before it was done.
    hangs     how often it has hung, one time after the other.
    passing   whether something else killed the child, or it got no memory.
    age       seconds since an earlier process tried it; 0 if this process did.
    """

    entry: BackendEntry
    reason: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] | None = None
    priority: int | None = None
    output: str = ""
    died: bool = False
    hangs: int = 0
    passing: bool = False
    age: float = 0.0

    @property
    def works(self) -> bool:
        return not self.reason

    @property
    def seconds_kept(self) -> float:
        """How long later processes believe the result."""
        grown = max(0, min(self.hangs - 1, MOST_GROWN))
        return min(HUNG * GROWTH**grown, DAY) if self.hangs else DAY

    @property
    def has_gpu(self) -> bool:
        return any(device.is_gpu for device in self.devices)


_known: dict[BackendEntry, ProbeResult] = {}
_running: set[subprocess.Popen[bytes]] = set()
logger = logging.getLogger("backbay.discovery")


def probe_all(
    entries: Iterable[BackendEntry], timeout: float | None = None, *, again: bool = False
) -> list[ProbeResult]:
    """Probe all backends at the same time, each for TIMEOUT seconds or another time.

    Results are kept in this process, and for a day in the cache folder if the backend works, or its child died; a hang
    is kept for minutes at first. A backend that says why it does not work is asked by each process. `again` probes anew.
    """
    wanted = list(entries)
    missing = [entry for entry in wanted if again or entry not in _known]
    recalled = {entry: found for entry in missing if not again and (found := kept_result(entry))}
    _known.update(recalled)
    limit = TIMEOUT if timeout is None else timeout
    for result in _probe_together([entry for entry in missing if entry not in recalled], limit):
        _known[result.entry] = result
        _keep(result, limit)
    return [_known[entry] for entry in wanted]


def _probe_together(entries: Sequence[BackendEntry], timeout: float) -> list[ProbeResult]:
    from concurrent.futures import ThreadPoolExecutor, wait

    if not entries:
        return []
    with ThreadPoolExecutor(len(entries)) as threads:
        futures = {threads.submit(probe, entry, timeout): entry for entry in entries}
        try:
            late = wait(futures, PATIENCE).not_done
            if late:
                names = ", ".join(sorted(futures[future].name for future in late))
                told = "checking that these backends work on this machine, for up to %g s: %s"
                logger.warning(told, timeout + GRACE, names)
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C shall not wait for a backend that hangs
            for child in list(_running):
                kill_helper(child)
            raise


def kept_result(entry: BackendEntry) -> ProbeResult | None:
    """The kept result of an earlier process; None if there is none, or it depends on what has changed since."""
    place = verdict_file(entry)
    facts: Any = None if place is None else place.recall(DAY)
    try:
        found = replace(_from_facts(entry, facts), age=max(time.time() - facts["time"], 1.0))
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError):  # nothing was kept, or nonsense
        return None
    if found.age > found.seconds_kept:
        return None
    if found.died:
        since = f"seen {age_text(found.age)} ago; `backbay doctor` tries it again"
        return replace(found, reason=f"{found.reason} ({since})")
    return replace(found, devices=tuple(replace(each, free_memory=None) for each in found.devices))


def forget_result(entry: BackendEntry) -> None:
    """Let the next process probe a backend anew, as it did not do what the result says."""
    if (place := verdict_file(entry)) is not None:
        place.forget()


def _keep(result: ProbeResult, timeout: float) -> None:
    place = verdict_file(result.entry)
    if place is None:
        return
    if result.hangs:
        earlier = place.recall()
        before = earlier.get("hangs", 0) if isinstance(earlier, dict) else 0
        result = replace(result, hangs=before + 1 if isinstance(before, int) else 1)
    lasts = result.died and not result.passing and timeout >= TIMEOUT  # in less time, it may not have hung
    if result.works or lasts:
        place.keep({**asdict(result), "entry": result.entry.name, "time": time.time()})
    else:
        place.forget()


def probe(entry: BackendEntry, timeout: float = TIMEOUT) -> ProbeResult:
    """Try one backend in a child process: import it, start it without a model, compute with it."""
    import tempfile

    try:
        with tempfile.TemporaryFile() as noise:
            code, said = _spawn(entry, timeout, noise)
            noise.seek(0)
            output = noise.read().decode(errors="replace")
    except OSError as error:
        return ProbeResult(entry, f"no process could be started to try it: {error}")
    return _result(entry, code, said, output, timeout)


def _spawn(entry: BackendEntry, timeout: float, noise: IO[bytes]) -> tuple[int | None, bytes]:
    """The child's exit status (None if it had to be killed), and its report."""
    request = {"path": [str(where) for where in sys.path], "entry": asdict(entry), "timeout": timeout}
    command = [sys.executable, "-c", _CHILD]
    child = start_helper(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=noise)
    _running.add(child)
    with child:
        try:
            said, ended = _listen(child, entry.name, json.dumps(request).encode(), timeout)
        finally:
            _running.discard(child)
    return child.returncode if ended else None, said


def _listen(child: subprocess.Popen[bytes], name: str, request: bytes, timeout: float) -> tuple[bytes, bool]:
    """The child's report, and whether it ended in time. A backend may ask for an extension."""
    given: bytes | None = request
    begun, limit = time.monotonic(), timeout + GRACE
    while (left := begun + limit - time.monotonic()) > 0:
        try:
            return child.communicate(given, min(left, NEWS))[0], True
        except subprocess.TimeoutExpired as late:
            facts = _read(late.output or b"")
        given, limit = None, timeout + GRACE + facts["extension"]
        if facts["extension"]:
            logger.warning("the first start of %s on this machine takes long, up to %g s", name, limit)
    kill_helper(child)
    return child.communicate()[0], False


def _result(entry: BackendEntry, code: int | None, said: bytes, output: str, timeout: float) -> ProbeResult:
    """The result from the lines of the child's report; its last stage is where it ended."""
    facts = _read(said)
    died = not facts.get("finished", False)
    hung = died and (code is None or "Timeout (" in output)
    passing = died and not hung and ended_from_outside(code or 0, output)
    if died:
        limit = timeout + facts["extension"]
        facts["reason"] = _end(None if hung else code, facts["stage"], output, limit)
    output = output[-4000:].strip()
    try:
        made = _from_facts(entry, {**facts, "output": output, "died": died, "hangs": int(hung)})
        return replace(made, passing=passing)
    except (TypeError, AttributeError) as error:  # a plugin wrote into the report
        return ProbeResult(entry, f"its report cannot be read: {error}", output=output)


def _from_facts(entry: BackendEntry, facts: Any) -> ProbeResult:
    """A result from the fields of a report; TypeError, AttributeError or KeyError if they are none."""
    kernels, priority = facts.get("kernels"), facts.get("priority")
    if not isinstance(priority, int | None):
        raise TypeError(f"the priority is {priority!r}")
    kernels = None if kernels is None else tuple(map(str, kernels))
    devices = tuple(DeviceInfo(**device) for device in facts.get("devices", ()))
    details = {str(key): str(value) for key, value in facts.get("details", {}).items()}
    reason, output = str(facts.get("reason", "")), str(facts["output"])
    died, hangs = bool(facts["died"]), int(facts["hangs"])
    return ProbeResult(entry, reason, devices, details, kernels, priority, output, died, hangs)


def _read(said: bytes) -> dict[str, Any]:
    facts: dict[str, Any] = {"stage": "Python started", "extension": 0.0}
    for line in said.decode(errors="replace").splitlines():
        with suppress(ValueError):  # half a line, or a plugin's own
            fact = json.loads(line)
            facts.update(fact if isinstance(fact, dict) else {})
    return facts


def _end(code: int | None, stage: str, output: str, timeout: float) -> str:
    """The reason if the child ended before it finished: it hung, crashed, or ended the process."""
    # From faulthandler's traceback.
    innermost = re.search(r'most recent call first\):\n  File "([^"]+)", line (\d+)', output)
    where = f", at {innermost[1]}:{innermost[2]}" if innermost else ""
    if code is None:
        return f"it hung while {stage}: no answer in {timeout:g} s{where}"
    if code >= 0:
        return f"it ended the process with status {code} while {stage}"
    return f"it crashed with {exit_name(code)} while {stage}{where}"


def sort_results(probed: Sequence[ProbeResult]) -> list[ProbeResult]:
    """Sort results, best first; of those that rank the same, the earlier name."""
    return sorted(probed, key=lambda result: (rank(result), result.entry.name))


def rank(result: ProbeResult) -> tuple[bool, bool, bool, int]:
    """The smaller, the better: it works, states a priority, has a GPU, has a higher priority."""
    return not result.works, result.priority is None, not result.has_gpu, -(result.priority or 0)

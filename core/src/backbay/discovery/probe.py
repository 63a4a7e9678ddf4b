"""A probe tries an installed backend in a child process: if the backend crashes or hangs, only the child dies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from ..types.params import DeviceInfo
from .installed import BackendEntry

TIMEOUT = 20.0  # seconds; starting a GPU's library can take several
GRACE = 5.0  # further seconds, in which the child itself can report where it hangs
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
    """

    entry: BackendEntry
    reason: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    details: dict[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] | None = None
    priority: int | None = None
    output: str = ""

    @property
    def works(self) -> bool:
        return not self.reason

    @property
    def has_gpu(self) -> bool:
        return any(device.is_gpu for device in self.devices)


_known: dict[BackendEntry, ProbeResult] = {}


def probe_all(
    entries: Iterable[BackendEntry], timeout: float = TIMEOUT, *, again: bool = False
) -> list[ProbeResult]:
    """Probe all backends at the same time. Results are cached in this process; `again` probes anew."""
    from concurrent.futures import ThreadPoolExecutor

    wanted = list(entries)
    missing = [entry for entry in wanted if again or entry not in _known]
    if missing:
        with ThreadPoolExecutor(len(missing)) as threads:
            _known.update(
                zip(missing, threads.map(lambda entry: probe(entry, timeout), missing), strict=True)
            )
    return [_known[entry] for entry in wanted]


def probe(entry: BackendEntry, timeout: float = TIMEOUT) -> ProbeResult:
    """Try one backend in a child process: import it, start it without a model, compute with it."""
    import tempfile

    with tempfile.TemporaryFile() as noise:
        try:
            code, said = _spawn(entry, timeout, noise)
        except OSError as error:
            return ProbeResult(entry, f"no process could be started to try it: {error}")
        noise.seek(0)
        return _result(entry, code, said, noise.read().decode(errors="replace"), timeout)


def _spawn(entry: BackendEntry, timeout: float, noise: IO[bytes]) -> tuple[int | None, bytes]:
    """The child's exit status (None if it had to be killed), and its report."""
    import json

    request = {"path": [str(where) for where in sys.path], "entry": asdict(entry), "timeout": timeout}
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=noise,
        start_new_session=True,  # so that it can be killed with its own children
    )
    with child:
        try:
            said, _ = child.communicate(json.dumps(request).encode(), timeout + GRACE)
        except subprocess.TimeoutExpired:
            _kill(child)
            return None, child.communicate()[0]
    return child.returncode, said


def _kill(child: subprocess.Popen[bytes]) -> None:
    import os
    import signal

    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _result(entry: BackendEntry, code: int | None, said: bytes, output: str, timeout: float) -> ProbeResult:
    """The result from the lines of the child's report; its last stage is where it ended."""
    facts: dict[str, Any] = {"stage": "Python started"}
    for line in said.decode(errors="replace").splitlines():
        facts.update(_facts(line))
    reason = facts.get("reason", "")
    if not facts.get("finished", False):
        reason = _end(code, facts["stage"], output, timeout)
    kernels = facts.get("kernels")
    try:
        return ProbeResult(
            entry,
            str(reason),
            tuple(DeviceInfo(**device) for device in facts.get("devices", ())),
            {str(key): str(value) for key, value in facts.get("details", {}).items()},
            None if kernels is None else tuple(map(str, kernels)),
            facts.get("priority"),
            output[-4000:].strip(),
        )
    except (TypeError, AttributeError) as error:  # a plugin wrote into the report
        return ProbeResult(entry, f"its report cannot be read: {error}", output=output[-4000:].strip())


def _facts(line: str) -> dict[str, Any]:
    """A line of the report; nothing if it is half a line, or a plugin's own."""
    import json

    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _end(code: int | None, stage: str, output: str, timeout: float) -> str:
    """The reason if the child ended before it finished: it hung, crashed, or ended the process."""
    where = _innermost(output)
    if code is None or "Timeout (" in output:
        return f"it hung while {stage}: no answer in {timeout:g} s{where}"
    if code < 0:
        return f"it crashed with {_signal(-code)} while {stage}{where}"
    return f"it ended the process with status {code} while {stage}"


def _signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _innermost(output: str) -> str:
    """The line of Python that ran last, from faulthandler's traceback."""
    found = re.search(r'most recent call first\):\n  File "([^"]+)", line (\d+)', output)
    return f", at {found[1]}:{found[2]}" if found else ""


def ranked(probed: Sequence[ProbeResult]) -> list[ProbeResult]:
    """Sort results, best first: works, states a priority, has a GPU, higher priority, earlier name."""
    return sorted(
        probed,
        key=lambda v: (not v.works, v.priority is None, not v.has_gpu, -(v.priority or 0), v.entry.name),
    )

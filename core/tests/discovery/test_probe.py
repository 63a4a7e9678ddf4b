"""A probe tells whether a plugin works, whatever the plugin does to its process."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent

import pytest
from environment import GOOD, with_gpu
from patience import PATIENCE

from backbay.discovery import probe as probe_module
from backbay.discovery.installed import BackendEntry
from backbay.discovery.probe import ProbeResult, probe, probe_all
from backbay.discovery.records import verdict_file

SEGFAULT = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
HANG = "import time; time.sleep(600)"


def started(body: str) -> str:
    """A plugin that does something when its backend is constructed."""
    return GOOD.replace(
        "kernels = kernel\n", f"kernels = kernel\n\n        def __init__(self, *args):\n            {body}\n"
    )


@pytest.fixture
def verdict_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe_module, "GRACE", PATIENCE)

    def judge(source: str, timeout: float = PATIENCE) -> ProbeResult:
        (tmp_path / "probed_plugin.py").write_text(dedent(source))
        return probe(BackendEntry("probed", "backbay-probed", "1.0", "probed_plugin"), timeout)

    return judge


def test_a_good_plugin_works_and_tells_of_itself(verdict_on) -> None:
    result = verdict_on(with_gpu(GOOD).replace("kernels = kernel", "kernels = kernel; priority = 7"))
    assert result.works, result
    assert [device.id for device in result.devices] == ["CPU:0", "FAST:0"]
    assert result.has_gpu
    assert result.kernels == ("mulmat",)
    assert result.priority == 7
    assert result.details == {"library": "none"}


@pytest.mark.fault(
    "a plugin kills the process that probes it", "the plugin is unavailable; the step is named"
)
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os; os._exit(0)", "it ended the process with status 0 while it was imported"),
        (SEGFAULT, "it crashed with SIGSEGV while it was imported, at "),
        (started("import os; os.abort()"), "it crashed with SIGABRT while it was started, at "),
        (
            GOOD.replace("return np.matmul", f"{SEGFAULT}; return np.matmul"),
            "it crashed with SIGSEGV while it computed",
        ),
        (started("raise RuntimeError('no driver')"), "RuntimeError: no driver"),
        (started("raise SystemExit(4)"), "SystemExit: 4"),
    ],
)
def test_a_plugin_that_dies_is_told_from_the_step_it_died_in(verdict_on, source: str, reason: str) -> None:
    result = verdict_on(source)
    assert not result.works
    assert result.reason.startswith(reason)


@pytest.mark.fault("a plugin hangs", "the plugin is unavailable after a time limit; the step is named")
@pytest.mark.parametrize(
    ("source", "stage"),
    [(HANG, "it was imported"), (started("import time; time.sleep(600)"), "it was started")],
)
@pytest.mark.few(1)
def test_a_plugin_that_hangs_is_given_up_and_said_where(verdict_on, source: str, stage: str) -> None:
    result = verdict_on(source, timeout=3.0)
    assert result.reason.startswith(f"it hung while {stage}: no answer in 3 s, at ")
    assert "probed_plugin.py" in result.reason


ASKS_FOR_MORE = (
    "kernels = kernel\n\n        @classmethod\n        def trial_seconds(cls):\n            return {}\n"
)


class Clock:
    """Time passes while the child is waited for."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Child:
    """A child process that asks for more time with its first words, and ends after so many seconds, if it may."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.end = clock, clock.now + seconds

    def communicate(self, _: bytes | None = None, timeout: float = 0.0) -> tuple[bytes, None]:
        said = b'{"stage": "it was started", "extension": 60.0}\n'
        if timeout < self.end - self.clock.now:
            self.clock.now += timeout
            raise subprocess.TimeoutExpired("child", timeout, said)
        return said, None

    def kill(self) -> None:
        self.end = self.clock.now


@pytest.mark.thorough
def test_a_plugin_may_ask_for_more_time(verdict_on) -> None:
    """The child gives itself the time that its backend asks for."""
    tells = "import faulthandler, functools\nprint = functools.partial(print, flush=True)\n"
    tells += "faulthandler.dump_traceback_later = lambda limit, exit: print('limit', limit)\n"
    result = verdict_on(tells + dedent(GOOD.replace("kernels = kernel\n", ASKS_FOR_MORE.format(60.0))))
    assert result.works, result.reason
    assert result.output == f"limit {PATIENCE + 60}"


@pytest.mark.parametrize(("seconds", "ended"), [(65.9, True), (66.1, False)])
def test_a_plugin_is_waited_for_as_long_as_it_asks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, ended: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(probe_module, "time", clock)
    monkeypatch.setattr(probe_module, "kill_helper", Child.kill)
    assert probe_module._listen(Child(clock, seconds), "patient", b"", 1.0)[1] == ended  # type: ignore[arg-type]
    assert clock.now <= 1066


@pytest.mark.thorough
def test_a_plugin_that_hangs_after_it_asked_for_more_time_is_given_up(verdict_on) -> None:
    patient = started("import time; time.sleep(600)").replace("kernels = kernel\n", ASKS_FOR_MORE.format(1.0))
    result = verdict_on(patient, timeout=3.0)
    assert result.reason.startswith("it hung while it was started: no answer in 4 s")


@pytest.mark.fault("a plugin stops its own process", "the process is killed after a time limit")
def test_a_plugin_that_stops_its_process_is_killed(verdict_on, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "GRACE", 0.5)
    result = verdict_on("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout=1.5)
    assert result.reason.startswith("it hung while")


@pytest.mark.fault("a plugin computes wrongly", "the plugin is unavailable")
def test_a_plugin_that_computes_wrongly_does_not_work(verdict_on) -> None:
    result = verdict_on(GOOD.replace("np.matmul(x,", "2 * np.matmul(x,"))
    assert result.reason == (
        "mulmat: f32[256,32] x f32[256,3], all ones: [512.0, 512.0, 512.0, 512.0] instead of 256"
    )


def test_what_a_plugin_prints_is_kept_apart_from_the_verdict(verdict_on) -> None:
    result = verdict_on(
        "import os; print('hello', flush=True); os.system('echo from C')" + GOOD.replace("\n    ", "\n")
    )
    assert result.works, result
    assert result.output == "hello\nfrom C"


def test_a_diagnosis_that_fails_is_told_and_breaks_nothing(verdict_on) -> None:
    result = verdict_on(GOOD.replace('return {"library": "none"}', "raise RuntimeError('no version')"))
    assert result.works, result
    assert result.details == {"diagnosis": "RuntimeError: no version"}


def test_what_was_learned_before_a_crash_is_kept(verdict_on) -> None:
    result = verdict_on(started(SEGFAULT))
    assert result.kernels == ("mulmat",)
    assert result.details == {"library": "none"}
    assert "Segmentation fault" in result.output


def test_a_process_left_running_by_a_plugin_does_not_hold_the_probe(verdict_on) -> None:
    source = "import subprocess; subprocess.Popen(['sleep', '600'])" + GOOD.replace("\n    ", "\n")
    result = verdict_on(source)
    assert result.works, result


def test_a_verdict_is_remembered_until_it_is_asked_for_again(verdict_on, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    count = f"open({str(seen)!r}, 'a').write('x'); import missing_library"
    verdict_on(count)
    entry = BackendEntry("probed", "backbay-remembered", "1.0", "probed_plugin")
    first, again = probe_all([entry])[0], probe_all([entry])[0]
    assert first is again
    assert seen.read_text() == "xx"
    assert probe_all([entry], again=True)[0].reason == first.reason
    assert seen.read_text() == "xxx"
    assert probe_all([]) == []


# -- what is kept ------------------------------------------------------------------------------------------


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed by a clock that stands still otherwise, and a cache folder."""
    monkeypatch.delenv("BACKBAY_NO_CACHE", raising=False)
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    ahead, begun = [0.0], time.time()
    monkeypatch.setattr(time, "time", lambda: begun + ahead[0])
    return ahead


ENTRY = BackendEntry("probed", "backbay-probed", "1.0", "probed_plugin")


def keep(result: ProbeResult) -> None:
    probe_module._keep(result, probe_module.TIMEOUT)
    date(result)


def date(result: ProbeResult) -> None:
    """Give the file of a kept result the time of the test's clock."""
    place = verdict_file(result.entry)
    assert place is not None
    assert place.path is not None
    if place.path.exists():
        os.utime(place.path, (time.time(),) * 2)


@pytest.mark.fault(
    "a plugin hangs because the machine is busy",
    "later processes believe it for ten minutes, after each further hang four times as long, up to a day",
)
def test_a_hang_is_believed_for_longer_each_time(clock: list[float]) -> None:
    for minutes in (10, 40, 160, 640, 1440, 1440):
        keep(ProbeResult(ENTRY, "it hung", died=True, hangs=1))
        clock[0] += 60 * minutes - 30
        found = probe_module.kept_result(ENTRY)
        assert found is not None
        assert found.reason.startswith("it hung (seen ")
        clock[0] += 60
        assert probe_module.kept_result(ENTRY) is None


def write(result: ProbeResult) -> None:
    """Put a result into the cache folder as it is."""
    place = verdict_file(result.entry)
    assert place is not None
    place.keep({**asdict(result), "entry": result.entry.name, "time": time.time()})
    date(result)


@pytest.mark.parametrize("hangs", [5, 600, 10**4, -3])
def test_any_number_of_hangs_is_believed_for_a_day_at_most(clock: list[float], hangs: int) -> None:
    result = ProbeResult(ENTRY, "it hung", died=True, hangs=hangs)
    write(result)
    assert probe_module.kept_result(ENTRY) is not None
    assert result.seconds_kept <= 86400


@pytest.mark.parametrize("hangs", ["many", None, float("inf"), float("nan")])
def test_a_number_of_hangs_that_is_none_is_ignored(clock: list[float], hangs: object) -> None:
    write(ProbeResult(ENTRY, "it hung", died=True, hangs=hangs))  # type: ignore[arg-type]
    assert probe_module.kept_result(ENTRY) is None


def test_a_plugin_that_works_after_a_hang_begins_anew(clock: list[float]) -> None:
    for result in ({"reason": "it hung", "died": True, "hangs": 1}, {}) * 2:
        keep(ProbeResult(ENTRY, **result))
        clock[0] += 700
        assert (probe_module.kept_result(ENTRY) is None) == bool(result)


def test_a_crash_is_believed_for_a_day(clock: list[float]) -> None:
    keep(ProbeResult(ENTRY, "it crashed", died=True))
    clock[0] += 86000
    assert probe_module.kept_result(ENTRY) is not None


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "sys.stderr.write('std::bad_alloc'); sys.stderr.flush(); os.abort()",
    ],
    ids=["SIGKILL", "bad_alloc"],
)
def test_the_end_of_a_plugin_that_was_killed_or_got_no_memory_is_not_kept(
    verdict_on, clock, end: str
) -> None:
    result = verdict_on(f"import os, signal, sys; {end}")
    assert (result.died, result.passing) == (True, True)
    keep(result)
    assert probe_module.kept_result(result.entry) is None

"""Random faults over the engine, on each backend and in each way to open a model. `make chaos` runs it for 30 minutes.

python lab/engine/chaos MODEL --minutes 30

A host process answers three threads while faults are injected (host.py, faults.py); meanwhile, commands meet full disks, little
memory and bad plugins (bystanders.py). The soak fails if a host dies, if a request takes more than 5 seconds, or longer on a
busy machine (patience.py), if an answer is wrong, or if a request ends in an error that no fault explains.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from bystanders import BYSTANDERS, Skipped
from patience import longest

import backbay

HOST = Path(__file__).with_name("host.py")
ENOUGH = 50  # wrongs, after which a soak shows nothing new
START = 60.0  # seconds for a host to load and answer


class Journal:
    """What was injected, what came of it, and what is wrong."""

    def __init__(self, seed: int) -> None:
        self.seed, self.begun = seed, time.monotonic()
        self.episodes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.skipped: set[str] = set()
        self.slowest: dict[str, float] = {}
        self.wrong: Counter[str] = Counter()

    def complain(self, where: str, what: str) -> None:
        told = f"{where}: {what}"
        self.wrong[told] += 1
        if self.wrong[told] == 1:
            print(f"\nwrong: {told}", file=sys.stderr)

    def report(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "minutes": round((time.monotonic() - self.begun) / 60, 1),
            "episodes": dict(sorted(self.episodes.items())),
            "faults": dict(sorted(self.faults.items())),
            "requests": dict(sorted(self.requests.items())),
            "longest request in seconds": max(self.slowest.values(), default=0.0),
            "skipped": sorted(self.skipped),
            "wrong": dict(self.wrong),
        }


@contextmanager
def rpc_server(way: str) -> Iterator[list[str]]:
    """For the way `rpc`: a server of ggml on this machine, as words for the host."""
    if way != "rpc":
        yield []
        return
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{trial.getsockname()[1]}"
    command = [sys.executable, "-m", "backbay_ggml.rpc_server", endpoint, "--until-eof", "--threads", "1"]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = ("127.0.0.1", int(endpoint.partition(":")[2]))
        while socket.socket().connect_ex(address) and server.poll() is None:
            time.sleep(0.05)
        yield ["--endpoint", endpoint, "--server", str(server.pid)]
    finally:
        server.kill()
        server.wait()


def episode(
    model: Path, backend: str, way: str, seconds: float, rng: random.Random, journal: Journal
) -> None:
    """One host, from its start to its end."""
    where = f"{backend}, {way}"
    journal.episodes[where] += 1
    bystander = rng.choice(BYSTANDERS)
    with rpc_server(way) as words:
        command = [sys.executable, "-W", "ignore", str(HOST), str(model), "--backend", backend, "--way", way]
        command += ["--seconds", str(seconds), "--seed", str(rng.randrange(1 << 30)), *words]
        host = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            watch(host, where, journal, lambda: stand_by(bystander, model, backend, journal))
        finally:
            if host.poll() is None:
                os.killpg(host.pid, signal.SIGKILL)
            host.wait()


def stand_by(bystander: Any, model: Path, backend: str, journal: Journal) -> None:
    try:
        told = bystander(model, backend)
    except Skipped as reason:
        journal.skipped.add(f"{bystander.__name__}: {reason}")
        return
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    journal.faults[bystander.__name__.replace("_", " ")] += 1
    if told:
        journal.complain(f"{bystander.__name__}, {backend}", told)


def watch(host: subprocess.Popen[str], where: str, journal: Journal, meanwhile: Any) -> None:
    """Read what a host tells until it ends; a host that is silent for too long is asked where it stands, and killed."""
    assert host.stdout is not None
    selector = selectors.DefaultSelector()
    selector.register(host.stdout, selectors.EVENT_READ)
    patience, last, ended, aside = START, "loading", False, None
    counts: dict[str, int] = {}
    while True:
        if not selector.select(patience):
            journal.complain(where, f"the host is silent for {patience:.0f} s after: {last}")
            host.send_signal(signal.SIGUSR1)  # faulthandler writes where each thread stands
            time.sleep(1)
            break
        line = host.stdout.readline()
        if not line:
            break
        told = json.loads(line)
        match told["event"]:
            case "ready":
                patience = longest()
                aside = Thread(target=meanwhile)
                aside.start()
            case "fault":
                last = told["name"]
                journal.faults[last] += 1
            case "wrong":
                journal.complain(where, f"after {last}: {told['what']}")
            case "beat" | "end":
                counts = told["counts"]
                journal.slowest[where] = max(journal.slowest.get(where, 0.0), told["longest"])
                if told.get("overdue"):
                    journal.complain(where, f"after {last}: requests hang: {told['overdue']}")
                    host.send_signal(signal.SIGUSR1)
                ended = told["event"] == "end"
    if aside is not None:
        aside.join()
    journal.requests.update(counts)
    try:
        status = host.wait(longest())
    except subprocess.TimeoutExpired:
        journal.complain(where, f"the host does not exit after: {last}")
    else:
        if not ended or status:
            journal.complain(where, f"the host ended with {status} after: {last}")


def ways(backend: str) -> list[str]:
    return ["mapped", "copied", "worker", *(["rpc"] if backend == "ggml" else [])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--episode", type=float, default=20, metavar="SECONDS", help="length of an episode")
    parser.add_argument("--backend", action="append", help="by default all that are installed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng, journal = random.Random(args.seed), Journal(args.seed)
    print(f"seed {args.seed}", file=sys.stderr)
    end = journal.begun + 60 * args.minutes
    pairs = [(name, way) for name in args.backend or sorted(backbay.backends()) for way in ways(name)]
    rng.shuffle(pairs)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with suppress(KeyboardInterrupt):  # a run that is stopped still reports
        for backend, way in itertools.cycle(pairs):
            left = end - time.monotonic()
            if left <= 0 or len(journal.wrong) >= ENOUGH:
                break
            if sys.stderr.isatty():
                print(
                    f"\r{left / 60:5.1f} minutes left, {len(journal.wrong)} wrong, {backend}, {way}   ",
                    end="",
                    file=sys.stderr,
                )
            episode(args.model, backend, way, min(args.episode, max(left, 1)), rng, journal)
    report = journal.report()
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(f"{name}: {value}" for name, value in report.items()))
    return 1 if journal.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

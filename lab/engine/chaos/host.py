"""One episode of chaos: a model that answers three threads while faults are injected. Each event is a line of JSON.

python lab/engine/chaos/host.py MODEL --backend ggml --way worker --seconds 25 --seed 3
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import InjectedFault, faults_of
from patience import longest

from backbay import BackbayError, BackendParams, ClosedError
from backbay_engine import LLM, RequestError, load

SIZES: dict[str, Any] = {"context": 96, "batch": 32, "parallel": 4, "num_threads": 1}
PROMPTS = ["sum 417 268 =", "sort 5 2 9 1 =", "reverse p l a n e t =", "max 81 730 95 ="]


@dataclass(frozen=True)
class Problem:
    prompt: list[int]
    options: dict[str, Any]
    tokens: list[int]  # the answer of an undisturbed model


@dataclass
class Window:
    """The time in which a fault may show, and the errors that it may show as."""

    name: str
    errors: tuple[type[BackbayError], ...]
    begun: float
    ended: float = float("inf")


class Host:
    """A model, three threads that ask it, and a journal of what they got."""

    def __init__(self, model: Path, backend: str, way: str, folder: Path, options: dict[str, str]) -> None:
        self.original, self.path = model, folder / "model.gguf"
        self.backend, self.way, self.options = backend, way, options
        self.windows: list[Window] = []
        self.counts: Counter[str] = Counter()
        self.longest = 0.0
        self.asking: dict[int, tuple[float, str]] = {}
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self.restore()
        self.llm = self.open()

    def open(self) -> LLM:
        more = {"worker": True} if self.way == "worker" else {}
        return load(self.path, self.backend, params=BackendParams(options=self.options), **SIZES, **more)

    def restore(self) -> None:
        """Put the sound model file in place, as a new file."""
        fresh = self.path.with_suffix(".fresh")
        shutil.copyfile(self.original, fresh)
        fresh.replace(self.path)

    def reopen(self) -> None:
        """Close the model, and load the sound file."""
        self.llm.close()
        self.restore()
        self.llm = self.open()

    def problems(self) -> list[Problem]:
        found = []
        for prompt in PROMPTS:
            for options in ({"temperature": 0}, {"temperature": 1.0, "top_k": 20, "seed": 7}):
                given = {**options, "max_tokens": 24, "stop": ()}
                answer = self.llm.generate(prompt, **given)
                found.append(Problem(self.llm.encode(prompt), given, answer.tokens))
        return found

    @contextmanager
    def window(self, name: str, *errors: type[BackbayError]) -> Iterator[None]:
        """While this is open, and for the requests that run meanwhile, these errors are the right answer."""
        opened = Window(name, errors, time.monotonic())
        self.windows.append(opened)
        try:
            yield
        finally:
            opened.ended = time.monotonic()

    def explained(self, error: BackbayError, begun: float) -> bool:
        return any(isinstance(error, w.errors) and w.ended >= begun for w in self.windows)

    def ask_for_ever(self, thread: int, problems: list[Problem], rng: random.Random) -> None:
        while not self.ended.is_set():
            begun = time.monotonic()
            kind = rng.choices(["plain", "cancelled", "refused"], [8, 1, 1])[0]
            self.asking[thread] = begun, kind
            try:
                self._ask(rng.choice(problems), kind, rng)
            except BackbayError as error:
                self._count(type(error).__name__)
                if not self.explained(error, begun):
                    say("wrong", what=f"{kind}: {type(error).__name__}: {error}")
                time.sleep(0.02)  # a model that is gone is not asked without end
            except Exception as error:  # any other error breaks the engine's promise
                say("wrong", what=f"{kind}: {type(error).__name__}: {error}")
            took = time.monotonic() - begun
            self.longest = max(self.longest, took)
            self.asking.pop(thread)

    def _ask(self, problem: Problem, kind: str, rng: random.Random) -> None:
        if kind == "refused":
            try:
                self.llm.generate([-1], max_tokens=1)
            except RequestError:
                self._count("refused")
            else:
                say("wrong", what="a token of -1 was taken")
            return
        handle = self.llm.submit(problem.prompt, **problem.options)
        if kind == "cancelled":
            time.sleep(rng.random() / 100)
            handle.cancel()
        found = handle.result()
        right = (
            found.tokens == problem.tokens[: len(found.tokens)]
            if kind == "cancelled"
            else (found.tokens == problem.tokens)
        )
        self._count(kind)
        if not right:
            say("wrong", what=f"{kind}: {found.tokens} where {problem.tokens} is right")

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def overdue(self) -> str:
        """The requests that have waited for longer than any may."""
        now, most = time.monotonic(), longest()
        return ", ".join(
            f"{kind} for {now - begun:.1f} s"
            for begun, kind in list(self.asking.values())
            if now - begun > most
        )

    def beat(self) -> None:
        """Tell the supervisor each half second that the interpreter runs, and what hangs."""
        while not self.ended.wait(0.5):
            say("beat", counts=dict(self.counts), overdue=self.overdue(), longest=round(self.longest, 2))


def say(event: str, **told: Any) -> None:
    try:
        sys.stdout.write(json.dumps({"event": event, **told}) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the supervisor is gone
        os._exit(1)


def inject(host: Host, fault: InjectedFault, rng: random.Random) -> None:
    begun = time.monotonic()
    say("fault", name=fault.name)
    with host.window(fault.name, *fault.errors):
        try:
            fault.inject(host, rng)
        except Exception as error:
            say("wrong", what=f"{fault.name}: {type(error).__name__}: {error}")
    say("recovered", name=fault.name, seconds=round(time.monotonic() - begun, 2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--way", choices=["mapped", "copied", "worker", "rpc"], required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--endpoint", help="of the RPC server, with --way rpc")
    parser.add_argument("--server", type=int, help="process id of the RPC server")
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rng = random.Random(args.seed)
    options = {"copied": {"weights": "copied"}, "rpc": {"rpc": args.endpoint or ""}}.get(args.way, {})
    with tempfile.TemporaryDirectory() as folder:
        host = Host(args.model, args.backend, args.way, Path(folder), options)
        problems = host.problems()
        threads = [
            threading.Thread(
                target=host.ask_for_ever, args=(n, problems, random.Random(rng.random())), daemon=True
            )
            for n in range(3)
        ]
        beat = threading.Thread(target=host.beat, daemon=True)
        for thread in [*threads, beat]:
            thread.start()
        say("ready")
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            time.sleep(rng.random() / 2)
            inject(host, rng.choice(faults_of(args.way, args.server)), rng)
        host.ended.set()
        for thread in [*threads, beat]:
            thread.join()
        with host.window("closing", ClosedError):
            host.llm.forget()
            host.llm.close()
    say("end", counts=dict(host.counts), longest=round(host.longest, 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

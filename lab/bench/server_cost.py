"""What the server itself costs, over an engine that gives tokens by the clock: no backend computes.

    python lab/bench/server_cost.py --clients 16

`token` is the processor time of the serving process for a token: from the engine's thread to the socket, without the
clients, which are another process. `request` is that of a request with one token. `first` is the wall time of such a
request, from the client's connection to the first event: what the server adds to the engine's own first token. The
processor time hardly depends on what else runs on the machine; the wall time does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import uvicorn
from server_load import stream
from sides import write_json

from backbay_engine import LLM, Completion, Handle, Timings, TokenStep
from backbay_server import app

MODEL = Path(__file__).parents[2] / "examples/models/backbay-tiny-f16.gguf"
GAP = 0.004  # seconds between two steps


class Clock:
    """Gives tokens to all requests, step by step."""

    def __init__(self) -> None:
        self._new = SimpleQueue[tuple[Handle[Completion], int]]()
        Thread(target=self._run, daemon=True).start()

    def submit(
        self, llm: LLM, prompt: Any, *, on_step: Callable[[Any], None], max_tokens: int, **_: Any
    ) -> Any:
        """In place of the engine's own."""
        handle: Handle[Completion] = Handle(lambda: None, on_step)
        self._new.put((handle, max_tokens))
        return handle

    def _run(self) -> None:
        running: list[tuple[Handle[Completion], int]] = []
        while True:
            while not running or not self._new.empty():
                running.append(self._new.get())
            for handle, left in running:
                handle.emit(TokenStep(f" word{left}", (left,), None))
                if left == 1:
                    handle.succeed(Completion("", [], "length", timings=Timings(prompt_tokens=3)))
            running = [(handle, left - 1) for handle, left in running if left > 1]
            if running:
                time.sleep(GAP)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--requests", type=int, default=100, help="with one token, one after the other")
    parser.add_argument("--chat", action="store_true", help="a chat's messages in place of a plain prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ask", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask is not None:
        asyncio.run(be_clients(args))
        return
    clock = Clock()
    LLM.submit = lambda llm, prompt, **options: clock.submit(llm, prompt, **options)  # type: ignore[method-assign]
    with_server(args)


def with_server(args: argparse.Namespace) -> None:
    """Serve in a thread, and print what each round has cost."""
    served = app(str(MODEL), backend="cpu_ref", context=512, parallel=args.clients, threads=1)
    server = uvicorn.Server(uvicorn.Config(served, "127.0.0.1", 0, ws="none", log_config=None))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    [sock] = [sock for each in server.servers for sock in each.sockets]
    port = sock.getsockname()[1]
    asked(args, port, 1, 4)  # loads the model
    rounds = [one_round(args, port) for _ in range(args.rounds)]
    server.should_exit = True
    thread.join()
    for name, unit in (("token", "us"), ("request", "us"), ("first", "ms")):
        found = sorted(each[name] for each in rounds)
        print(f"{name:8} {statistics.median(found):7.1f} {unit}   ({found[0]:.1f} to {found[-1]:.1f})")
    write_json(args.json, {"rounds": rounds})


def one_round(args: argparse.Namespace, port: int) -> dict[str, float]:
    spent, _ = asked(args, port, args.clients, 1, args.tokens)
    alone, firsts = asked(args, port, 1, args.requests)
    request = alone / args.requests
    token = (spent - args.clients * request) / (args.clients * (args.tokens - 1))
    return {"token": 1e6 * token, "request": 1e6 * request, "first": 1e3 * statistics.median(firsts)}


def asked(
    args: argparse.Namespace, port: int, clients: int, requests: int, tokens: int = 1
) -> tuple[float, list[float]]:
    """The processor time of this process while clients ask, and the seconds to each first token."""
    command = [sys.executable, __file__, "--ask", str(port), "--clients", str(clients)]
    command += ["--requests", str(requests), "--tokens", str(tokens), *(["--chat"] if args.chat else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        begun = time.process_time()
        process.stdin.write("\n")
        process.stdin.flush()
        firsts: list[float] = json.loads(process.stdout.readline())
        return time.process_time() - begun, firsts


async def be_clients(args: argparse.Namespace) -> None:
    firsts: list[float] = []

    async def ask(client: int) -> None:
        for number in range(args.requests):
            text, begun, count = f"{client} {number}", time.perf_counter(), 0
            asked = {"messages": [{"role": "user", "content": text}]} if args.chat else {"prompt": text}
            path = "/v1/chat/completions" if args.chat else "/v1/completions"
            async for data in stream(args.ask, path, {**asked, "max_tokens": args.tokens}):
                if " word" in data:
                    count += 1
                    if count == 1:
                        firsts.append(time.perf_counter() - begun)
            assert count == args.tokens, count

    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(ask(client) for client in range(args.clients)))
    print(json.dumps(firsts))


if __name__ == "__main__":
    main()

"""The server under load: its cost over the engine, beside llama-server, and five minutes of clients of all kinds.

    python lab/bench/server_load.py --shape host --clients 16          # what a token costs: almost no computation
    python lab/bench/server_load.py --shape one_b --clients 1 4 16 --sides engine server llama-server=/path/to/llama-server
    python lab/bench/server_load.py --soak 5

`rate` is tokens a second of all clients together, `first` the median time to a client's first token, and `cpu` the
processor time of the serving process for a token. Sides take turns; `engine` calls the engine in the same process.
The soak runs 64 clients over 8 slots: random lengths, 20 % leave early, 10 % send bad requests. Each whole answer must
be that of the request alone, and slots and memory must come back to the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from llama_file import arguments, be_side_or_compare
from sides import Side, against, serve, table, take_all_turns, write_json

SERVER, ENGINE, LLAMA = "server", "engine", "llama-server"
PARTS = {"rate": "tokens/s", "first": "ms", "cpu": "us/token"}
CONTEXT = 512
TINY = Path(__file__).parents[2] / "examples/models/backbay-tiny-f16.gguf"


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--sides", nargs="+", default=[ENGINE, SERVER], help=f"and {LLAMA}=PROGRAM")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only this: clients of all kinds")
    args = parser.parse_args()
    if args.soak is not None:
        write_json(args.json, asyncio.run(soak(args)))
    else:
        be_side_or_compare(args, be_side, compare)


def prompt(seed: int) -> str:
    """A text of some tokens that shares no prefix with another."""
    chance = random.Random(seed)
    return " ".join("".join(chance.choices("abcdefgh", k=3)) for _ in range(12))


# -- the sides ---------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace) -> dict[str, Any]:
    shared = ["--model", str(args.model), "--threads", str(args.threads), "--backend", args.backend]
    shared += ["--clients", *map(str, args.clients), "--tokens", str(args.tokens)]
    sides = [Side(name, [__file__, "--side", name, *shared]) for name in args.sides]
    results: dict[str, Any] = {}
    for clients in args.clients:
        found = take_all_turns(sides, str(clients), [*PARTS], args.rounds)
        for part, unit in PARTS.items():
            results[f"{clients} {part}"] = told = against(found[part], args.sides[0])
            print(table(f"{clients} clients: {part}", unit, told))
    for side in sides:
        side.close()
    return results


def be_side(args: argparse.Namespace) -> None:
    name, _, program = args.side.partition("=")
    if name == ENGINE:
        be_engine(args)
        return
    slots, command = max(args.clients), [sys.executable, "-m", "backbay", "serve", str(args.model)]
    command += ["--backend", args.backend, "--parallel", str(slots), "--context", str(CONTEXT), "--port", "0"]
    environment = dict(os.environ)
    command += ["--threads", str(args.threads)]
    if name == LLAMA:
        command = [
            program,
            "-m",
            str(args.model),
            "-np",
            str(slots),
            "-c",
            str(CONTEXT * slots),
            "-t",
            str(args.threads),
        ]
        command += ["--port", "18080", "--no-webui"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        port = 18080 if name == LLAMA else port_of(process)
        until_ready(port, "/health" if name == LLAMA else "/ready")
        fields: dict[str, Any] = {"max_tokens": args.tokens, "temperature": 0}
        fields |= {"ignore_eos": True} if name == LLAMA else {"model": args.model.stem}
        rounds = iter(range(1_000_000))

        def answer(request: str) -> dict[str, float]:
            return asyncio.run(measure(port, process.pid, fields, int(request), next(rounds)))

        try:
            answer("1")
            serve({}, answer)
        finally:
            process.terminate()


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    found = re.search(r":(\d+)$", process.stdout.readline().strip())
    assert found
    return int(found[1])


def until_ready(port: int, path: str) -> None:
    for _ in range(2400):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server does not become ready")


def cpu_of(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, pid: int, fields: dict[str, Any], clients: int, number: int) -> dict[str, float]:
    firsts: list[float] = []

    async def one(client: int) -> None:
        begun, count = time.perf_counter(), 0
        text = prompt(number * 1000 + client)
        async for _ in stream(port, "/v1/completions", {**fields, "prompt": text}):
            if not count:
                firsts.append(time.perf_counter() - begun)
            count += 1

    cpu, begun = cpu_of(pid), time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(clients)))
    whole = clients * fields["max_tokens"]
    took, spent = time.perf_counter() - begun, cpu_of(pid) - cpu
    return {"rate": whole / took, "first": 1e3 * statistics.median(firsts), "cpu": 1e6 * spent / whole}


def be_engine(args: argparse.Namespace) -> None:
    from backbay_engine import load

    llm = load(
        args.model, args.backend, context=CONTEXT, parallel=max(args.clients), num_threads=args.threads
    )
    rounds = iter(range(1_000_000))

    def answer(request: str) -> dict[str, float]:
        clients, number = int(request), next(rounds)
        begun, cpu, firsts = time.perf_counter(), time.process_time(), dict[int, float]()
        handles = []
        for client in range(clients):

            def on_step(item: Any, client: int = client) -> None:
                firsts.setdefault(client, time.perf_counter() - begun)

            text = prompt(number * 1000 + client)
            handles.append(llm.submit(text, max_tokens=args.tokens, temperature=0.0, on_step=on_step))
        for handle in handles:
            handle.result()
        whole = clients * args.tokens
        took, spent = time.perf_counter() - begun, time.process_time() - cpu
        first = 1e3 * statistics.median(firsts.values())
        return {"rate": whole / took, "first": first, "cpu": 1e6 * spent / whole}

    answer("1")
    serve({}, answer)


# -- a client that costs little ----------------------------------------------------------------------------


async def stream(port: int, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
    """The data of each event of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        content = json.dumps({**body, "stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + content)
        status = (await reader.readline()).split()[1]
        if status != b"200":
            raise RuntimeError(f"{status.decode()}: {(await reader.read())[-300:]!r}")
        while line := await reader.readline():
            if line.startswith(b"data: "):
                yield line[6:].strip().decode()
    finally:
        writer.close()


async def ask(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer that is not streamed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    whole = await reader.read()
    writer.close()
    return int(whole.split(b" ", 2)[1]), whole.partition(b"\r\n\r\n")[2]


# -- five minutes of clients -------------------------------------------------------------------------------

CLIENTS, SLOTS, PROMPTS = 64, 8, 24
BAD = (
    b"{",
    b"[]",
    b'{"model": "none", "prompt": "a"}',
    b'{"model": "MODEL", "prompt": 7}',
    b'{"model": "MODEL", "prompt": "a", "temperature": 99}',
    b'{"model": "MODEL", "prompt": "a", "max_tokens": -1}',
    b'{"model": "MODEL", "prompt": "' + b"a " * 5000 + b'"}',
)


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    requests = [{**task(n), "seed": n, "temperature": 0.5 * (n % 2)} for n in range(PROMPTS)]
    expected = await asyncio.to_thread(alone, requests, args)
    command = [
        sys.executable,
        "-m",
        "backbay",
        "serve",
        str(TINY),
        "--parallel",
        str(SLOTS),
        "--port",
        "0",
    ]
    command += ["--backend", args.backend, "--queue", str(CLIENTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        port = port_of(process)
        until_ready(port, "/ready")
        told, wrong, end = Counter[str](), list[str](), time.monotonic() + 60 * args.soak
        memory: list[int] = []

        async def client(number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < end:
                await one(chance)

        async def one(chance: random.Random) -> None:
            kind, which = chance.random(), chance.randrange(PROMPTS)
            if kind < 0.1:
                status, _ = await ask(
                    port, "/v1/completions", chance.choice(BAD).replace(b"MODEL", TINY.stem.encode())
                )
                told[f"bad {status}"] += 1
                return
            leaves = chance.randrange(4) if kind < 0.3 else None
            text, count, finished = "", 0, False
            async for data in stream(port, "/v1/completions", {"model": TINY.stem, **requests[which]}):
                if count == leaves:
                    break
                finished, count = data == "[DONE]", count + 1
                text += "" if finished else json.loads(data)["choices"][0]["text"]
            told["left" if not finished else "whole"] += 1
            if finished and text != expected[which]:
                wrong.append(f"{requests[which]}: {text!r} and not {expected[which]!r}")

        async def watch() -> None:
            while time.monotonic() < end:
                await asyncio.sleep(10)
                memory.append(resident(process.pid))

        await asyncio.gather(watch(), *(client(number) for number in range(CLIENTS)))
        await asyncio.sleep(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=20) as answer:
            state = json.load(answer)
        process.terminate()
    slots = state["models"][0]["slots"]
    print(dict(told), f"wrong: {len(wrong)}", *wrong[:3], sep="\n")
    print(
        f"busy slots: {sum(slot['busy'] for slot in slots)}, waiting: {state['models'][0]['waiting']}, running: {state['running']}"
    )
    print(
        f"resident after 10 s, at half time, at the end: {memory[0]}, {memory[len(memory) // 2]}, {memory[-1]} MiB"
    )
    assert not wrong
    assert not state["running"]
    return {"told": told, "wrong": len(wrong), "resident": memory}


def task(number: int) -> dict[str, Any]:
    """A task that the model was trained for, so that no answer hangs on a rounding."""
    chance = random.Random(number)
    letters = " ".join(chance.sample("abcdefghijklmnopqrstuvwxyz", chance.randrange(3, 8)))
    digits = " ".join(map(str, chance.sample(range(10), chance.randrange(3, 8))))
    prompt = (
        f"reverse {letters} =",
        f"sort {digits} =",
        f"max {chance.randrange(999)} {chance.randrange(999)} =",
    )
    return {"prompt": prompt[number % 3], "max_tokens": chance.randrange(3, 32)}


def alone(requests: list[dict[str, Any]], args: argparse.Namespace) -> list[str]:
    """The answers of requests that run one by one."""
    from backbay_engine import load

    with load(TINY, args.backend) as llm:
        return [llm.generate(**request).text for request in requests]


def resident(pid: int) -> int:
    """MiB of a process in memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) >> 10


if __name__ == "__main__":
    main()

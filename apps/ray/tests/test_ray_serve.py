"""Replicas on Ray Serve, killed and moved while they answer: every answer is that of the request alone.

Needs Ray, which is large: `make scale` sets up an environment of its own and runs these tests.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray_cluster import STARTING, Cluster, cluster, until
from scripted_model import SCRIPTS, says, write_scripted_model
from serving import chunks_of

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: `make scale` runs these tests", allow_module_level=True)

EMOJI = tuple(bytes((byte,)) for byte in "\U0001f600\U0001f680".encode())
LONG = {
    "emoji": says(*EMOJI * 120),  # nearly always in mid-character
    "near": says(*(" S", "T", "O", "X") * 200, " ST", "OP", " over"),  # nearly always in a stop string
}
LOADED = "the model scripted is loaded"
SLOTS, WAITING = 4, 6  # of each replica, and of all
# a slow machine may lose many replicas before one has given a token
ARGUMENTS = {"backend": "cpu_ref", "context": 4096, "cpus": 0.5, "retries": 100}
ARGUMENTS |= {"parallel": SLOTS, "queue": WAITING}
KILLS, MOST_KILLS = 6, 12  # the clients go on until the first, and the answers end after the second
REQUESTS: list[dict[str, Any]] = [
    {"script": "emoji", "temperature": 0},
    {"script": "emoji", "temperature": 0, "logprobs": True},
    {"script": "near", "temperature": 0, "stop": ["STOP", "zzz"]},
    {"script": "dice", "seed": 7, "max_tokens": 900},
    {"script": "dice", "seed": 8, "max_tokens": 700, "top_logprobs": 2, "logprobs": True},
    {"script": "endless", "temperature": 0, "max_tokens": 1500},
    {"script": "dice", "seed": 9, "max_tokens": 800, "temperature": 1.7, "presence_penalty": 0.5},
    {"script": "near", "temperature": 0},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf", {**SCRIPTS, **LONG})


@pytest.fixture(scope="module")
def ray() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def deployed(ray: Cluster, model: Path) -> Cluster:
    ray.deploy({**ARGUMENTS, "models": str(model), "replicas": 2}, num_replicas=2)
    ray.until_ready(2)
    return ray


@pytest.fixture
def served(deployed: Cluster) -> Cluster:
    """Two replicas that live."""
    deployed.until_ready(2)
    assert ask(deployed, {"script": "hello"}).status_code == 200
    return deployed


def body(script: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"[{script}]"}], **fields}


def ask(served: Cluster, request: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/chat/completions", json=body(**request), timeout=STARTING)


def streamed(served: Cluster, request: dict[str, Any], begun: threading.Event | None = None) -> list[Any]:
    """The choices of a stream, and its usage without what depends on the cache."""
    sent = body(**request, stream=True, stream_options={"include_usage": True})
    text = ""
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=sent, timeout=STARTING) as answer:
        assert answer.status_code == 200, answer.read()
        for part in answer.iter_text():
            text += part
            if begun is not None:
                begun.set()
    *chunks, last, done = chunks_of(text)
    assert done == "[DONE]", text[-500:]
    counts = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return [*(choice for chunk in chunks for choice in chunk["choices"]), counts]


@pytest.mark.fault(
    "replicas on Ray Serve are killed (-9) again and again under 16 streams",
    "each answer is that of the request alone",
)
def test_answers_outlive_replicas(served: Cluster):
    expected = [streamed(served, request) for request in REQUESTS]
    over, killed, loaded = threading.Event(), list[int](), served.logs().count(LOADED)
    chance = random.Random(0)

    def kill() -> None:
        """Kill one replica or both, once both have loaded and served for a while."""
        while len(killed) < MOST_KILLS and not over.wait(chance.uniform(0.5, 2)):
            if served.logs().count(LOADED) >= loaded + len(killed):
                found = served.replicas()
                for pid in chance.sample(found, min(len(found), chance.choice((1, 1, 2)))):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    def ask_on(client: int) -> list[tuple[int, list[Any]]]:
        """The answers of one client, with the numbers of their requests."""
        answers = []
        while len(killed) < KILLS or len(answers) < 2:
            number = (client + len(answers)) % len(REQUESTS)
            answers.append((number, patiently(served, REQUESTS[number])))
        return answers

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with ThreadPoolExecutor(16) as clients:
            found = [answer for each in clients.map(ask_on, range(16)) for answer in each]
    finally:
        over.set()
        killer.join()
    for number, answer in found:
        assert answer == expected[number]
    moved = served.logs().count("its request goes on in another")
    print(f"{len(killed)} replicas killed under {len(found)} answers, {moved} requests moved")
    assert moved >= KILLS


def patiently(served: Cluster, request: dict[str, Any]) -> list[Any]:
    """A stream, asked for again while the queue is full, as clients do."""
    while True:
        try:
            return streamed(served, request)
        except AssertionError as refused:
            if "rate_limit_exceeded" not in str(refused):
                raise
        time.sleep(0.2)


@pytest.mark.fault("a replica is killed before the first token", "another answers")
def test_killed_before_the_first_token(served: Cluster):
    expected = [streamed(served, request) for request in REQUESTS[:4]]
    served.kill(signal.SIGSTOP)
    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(streamed, served, request) for request in REQUESTS[:4]]
        time.sleep(3)
        assert not any(each.done() for each in asked)
        served.kill(signal.SIGKILL)
        assert [each.result() for each in asked] == expected


@pytest.mark.parametrize(
    "request_",
    [{"script": "emoji", "temperature": 0}, {"script": "near", "temperature": 0, "stop": ["STOP"]}],
    ids=["in a character", "in a stop string"],
)
def test_killed_where_text_is_held_back(served: Cluster, request_: dict[str, Any]):
    """All replicas are stopped; once the last token that has arrived gave no text, they are killed."""
    request = {**request_, "logprobs": True}
    expected = streamed(served, request)
    sent = body(**request, stream=True, stream_options={"include_usage": True})
    lines: list[str] = []
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=sent, timeout=STARTING) as answer:
        reader = threading.Thread(target=lines.extend, args=[filter(None, answer.iter_lines())])
        reader.start()
        while True:
            time.sleep(0.05)
            served.kill(signal.SIGSTOP)
            time.sleep(0.7)  # for what is under way
            assert reader.is_alive()
            if lines and '"content":""' in lines[-1] and '"logprobs":{' in lines[-1]:
                break
            served.kill(signal.SIGCONT)
        served.kill(signal.SIGKILL)
        reader.join(STARTING)
    *chunks, last, done = chunks_of("".join(f"{line}\n\n" for line in lines))
    assert done == "[DONE]"
    assert [choice for chunk in chunks for choice in chunk["choices"]] == expected[:-1]
    assert last["usage"]["completion_tokens"] == expected[-1]["completion_tokens"]


@pytest.mark.fault("a client of a replica leaves", "its sequence is free")
def test_a_client_that_leaves_frees_its_sequence(served: Cluster):
    for _ in range(2):
        with ExitStack() as streams:
            for _ in range(2 * SLOTS):
                sent = body("endless", stream=True, max_tokens=4000)
                answer = streams.enter_context(
                    httpx.stream("POST", f"{served.url}/v1/chat/completions", json=sent, timeout=STARTING)
                )
                next(answer.iter_lines())
        until(lambda: httpx.get(f"{served.url}/state").json()["running"] == 0)
        with ThreadPoolExecutor(2 * SLOTS) as clients:
            answers = [*clients.map(ask, [served] * 2 * SLOTS, [{"script": "hello"}] * 2 * SLOTS)]
        assert {answer.status_code for answer in answers} <= {200, 429}


@pytest.mark.fault(
    "as many requests wait for replicas as may", "429 with Retry-After, before the stream begins"
)
def test_too_many_requests_are_refused(served: Cluster):
    slow = {"script": "endless", "max_tokens": 600, "stream": True}
    with ThreadPoolExecutor(40) as clients:
        asked = [clients.submit(ask, served, slow) for _ in range(40)]
        answers = [each.result() for each in asked]
    assert {answer.status_code for answer in answers} == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert answer.headers["retry-after"]
            assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        else:
            assert answer.text.endswith("data: [DONE]\n\n")


def test_the_turns_of_conversations_find_their_prefixes(served: Cluster):
    cached, prompts = 0, 0
    for number in range(8):
        messages = [{"role": "user", "content": f"conversation {number} {'x' * 200} [hello]"}]
        for turn in range(4):
            sent = {"messages": messages, "temperature": 0}
            found = httpx.post(f"{served.url}/v1/chat/completions", json=sent, timeout=STARTING).json()
            if turn:
                cached += found["usage"]["prompt_tokens_details"]["cached_tokens"]
                prompts += found["usage"]["prompt_tokens"]
            said = found["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": f"{turn} [hello]"})
    print(f"{cached} of {prompts} prompt tokens of later turns were in the cache")
    assert cached > 0.8 * prompts


def test_ray_tells_the_metrics_that_routers_read(served: Cluster):
    running = "ray_vllm_num_requests_running{"
    wanted = (running, "ray_vllm_num_requests_waiting{", "ray_vllm_kv_cache_usage_perc{")
    until(lambda: all(name in served.ray_metrics() for name in wanted))
    line = next(line for line in served.ray_metrics().splitlines() if line.startswith(running))
    assert 'model_name="scripted"' in line
    assert 'deployment="Engine-scripted"' in line


@pytest.mark.fault(
    "fewer replicas are wanted while they answer", "the answers end whole, in time or elsewhere"
)
@pytest.mark.parametrize("seconds", [60.0, 0.5])
def test_draining_loses_nothing(served: Cluster, model: Path, seconds: float):
    requests = REQUESTS[3:7]
    expected = [streamed(served, request) for request in requests]
    arguments = {**ARGUMENTS, "models": str(model), "replicas": 2}
    served.deploy(arguments, num_replicas=2, graceful_shutdown_timeout_s=seconds)
    served.until_ready(2)
    begun = [threading.Event() for _ in range(8)]
    with ThreadPoolExecutor(8) as clients:
        asked = [*map(clients.submit, [streamed] * 8, [served] * 8, requests * 2, begun)]
        assert all(event.wait(300) for event in begun)
        served.deploy(arguments, num_replicas=1, graceful_shutdown_timeout_s=seconds)
        assert [each.result() for each in asked] == expected * 2
    until(lambda: len(served.replicas()) == 1)
    served.deploy(arguments, num_replicas=2, graceful_shutdown_timeout_s=seconds)


@pytest.mark.fault("the model file of a machine is replaced", "its new replica does not begin, and says why")
def test_another_model_is_refused(served: Cluster, model: Path):
    content = model.read_bytes()
    other = model.with_suffix(".new")
    other.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))
    other.replace(model)
    try:
        os.kill(served.replicas()[0], signal.SIGKILL)
        until(lambda: "is another than the one with which the application was deployed" in served.logs())
        assert ask(served, {"script": "hello"}).status_code == 200
    finally:
        model.write_bytes(content)
    served.until_ready(2)


def test_an_ingress_that_dies_is_replaced(served: Cluster):
    sent = body("endless", stream=True, max_tokens=4000)
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=sent, timeout=300) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert served.kill(deployment="Ingress") == 1
        with pytest.raises((httpx.HTTPError, AssertionError)):
            assert [*lines][-1] == "data: [DONE]"
    served.until_ready(2)
    assert ask(served, {"script": "hello"}).status_code == 200


def test_replicas_come_when_requests_wait_and_leave_when_none_do(deployed: Cluster, model: Path):
    scale = {"min": 1, "max": 2, "upscale_delay": 1, "downscale_delay": 5}
    deployed.deploy({**ARGUMENTS, "models": str(model), "replicas": scale})
    deployed.until_ready(1)
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            ask(deployed, {"script": "endless", "max_tokens": 600})

    with ThreadPoolExecutor(8) as clients:
        for _ in range(8):
            clients.submit(keep_asking)
        try:
            until(lambda: len(deployed.replicas()) == 2)
        finally:
            over.set()
    until(lambda: len(deployed.replicas()) == 1)

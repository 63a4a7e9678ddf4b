"""Asks a server at random for everything that /openapi.json describes, and judges the answers.

python lab/server/property_run.py --count 20000

Requests follow the description, or break it in one place (schemathesis draws them). No answer may be a 5xx but 503, take
more than 30 s twice in a row (a machine may stand still for a while), or have another form than described. Afterwards all slots are free, and the process has no more threads
and files than before, and hardly more memory.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "apps" / "server" / "tests"
INPUTS = Path(__file__).resolve().parents[2] / "apps" / "engine" / "tests" / "inputs"
sys.path[:0] = [str(TESTS), str(INPUTS)]

import httpx  # noqa: E402
import numpy as np  # noqa: E402
import requests  # noqa: E402
import schemathesis  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from processes import serving  # noqa: E402
from schemathesis import Case, GenerationMode  # noqa: E402
from schemathesis.core.failures import FailureGroup  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402
from scripted_model import SCRIPTS, write_embedder, write_reranker, write_scripted_model  # noqa: E402
from small_whisper import write_whisper  # noqa: E402

from backbay_server.apis.fields import USE  # noqa: E402

PROMPTS = [f"Say [{name}]" for name, script in SCRIPTS.items() if not script.faulty]
TEXTS = {"content", "input", "prompt", "query", "text"}  # fields to which a prompt may be given
REFERENCE = "#/components/schemas/"
HANGS = 30.0  # seconds
WARM = 0.1  # the share of requests after which threads, files and memory are counted
MORE_MEMORY, MORE_FILES, MORE_THREADS = 64 << 20, 8, 8  # pools and caches may still grow
JUDGED = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@dataclass
class Findings:
    """What the run has seen: statuses, and the kinds of faults."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: set[str] = field(default_factory=set)

    def fault(self, kind: str, shown: str) -> None:
        """Print the first fault of a kind, with a request that shows it."""
        if kind not in self.faults:
            self.faults.add(kind)
            print(f"FAULT {kind}\n{shown}\n", flush=True)


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    threads: int
    files: int
    memory: int

    @classmethod
    def by(cls, pid: int) -> Held:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return cls(int(status["Threads"]), files, int(status["VmRSS"].split()[0]) << 10)


def write_models(folder: Path) -> list[Path]:
    axes = np.eye(8, dtype=np.float32)
    return [
        write_scripted_model(folder / "scripted.gguf"),
        write_embedder(folder / "vectors.gguf", {"north": axes[0], "east": axes[1]}),
        write_reranker(folder / "scores.gguf", {"best": 3.0, "good": 1.0}),
        write_whisper(folder / "speech"),
    ]


def narrowed(description: Any) -> Any:
    """The description with requests that are rather served than refused: of those it allows, by far most are not."""
    found = copy.deepcopy(description)
    schemas = json.loads(
        json.dumps(description["components"]["schemas"]).replace(REFERENCE, f"{REFERENCE}asked.")
    )
    found["components"]["schemas"] |= {
        f"asked.{name}": _served(name, schema) for name, schema in schemas.items()
    }
    for operations in found["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                body = json.dumps(operation["requestBody"]).replace(REFERENCE, f"{REFERENCE}asked.")
                operation["requestBody"] = json.loads(body)
    return found


def judgeable(description: Any) -> Any:
    """The description without the schemas of events: schemathesis takes them for those of an event's lines."""
    for operations in description["paths"].values():
        for operation in operations.values():
            for media_type, content in operation["responses"]["200"]["content"].items():
                if media_type.startswith("text/event-stream"):
                    content.pop("schema")
    return description


def _served(name: str, schema: Any) -> Any:
    """The schema of a body, or of a part of it, without what is refused."""
    properties, required = schema.get("properties", {}), {*schema.get("required", ())}
    for refused in [key for key, each in properties.items() if each.get(USE) == "refused"]:
        del properties[refused]
    if "model" in properties and "Request" in name:
        kinds = {"Embed": "vectors", "Rerank": "scores", "Transcription": "speech"}
        kind = next((kind for part, kind in kinds.items() if part in name), "scripted")
        properties["model"] = {"enum": [kind]}
        required.add("model")
    if "messages" in properties:
        properties["messages"] |= {"minItems": 1}
        required.add("messages")
    if "role" in properties:
        properties["role"] = {"enum": ["user", "system"]}
        required |= {"role", "content"}
    properties.update({key: {"enum": PROMPTS} for key in TEXTS & properties.keys()})
    return {**schema, "required": sorted(required)} if properties else schema


def ask(url: str, case: Case, session: requests.Session, findings: Findings) -> None:
    """Send a request, and judge its answer."""
    shown, where = case.as_curl_command()[:2000], f"{case.method} {case.path}"
    try:
        answer = answered(url, case, session)
    except requests.Timeout:
        findings.fault(f"{where}: twice no answer in {HANGS:g} s", shown)
        return
    except requests.RequestException as error:
        findings.fault(f"{where}: {type(error).__name__}", shown)
        return
    findings.statuses[answer.status_code] += 1
    if answer.status_code >= 500 and answer.status_code != 503:
        findings.fault(f"{where}: {answer.status_code}", f"{shown}\n{answer.text[:500]}")
        return
    try:
        case.validate_response(answer, checks=JUDGED)
    except FailureGroup as group:
        for failure in group.exceptions:
            findings.fault(
                f"{where}: {answer.status_code}, {failure.title}", f"{shown}\n{failure.message[:500]}"
            )


def answered(url: str, case: Case, session: requests.Session) -> schemathesis.Response:
    """The answer to a request, which is sent again if none comes in time: what hangs by itself hangs again."""
    try:
        return case.call(base_url=url, session=session, timeout=HANGS)
    except requests.Timeout:
        print(f"no answer in {HANGS:g} s, asked again: {case.as_curl_command()[:500]}", flush=True)
        return case.call(base_url=url, session=session, timeout=HANGS)


def run(url: str, pid: int, count: int, number: int) -> Findings:
    """Ask for all operations twice, the second time for most of the requests; meanwhile the process must not grow."""
    findings = Findings()
    with httpx.Client(timeout=HANGS, base_url=url) as client:
        description = judgeable(client.get("/openapi.json").json())
        ask_all(url, description, int(count * WARM), number, findings)
        before = Held.by(pid)
        ask_all(url, description, count - int(count * WARM), number + 1, findings)
        check_rest(client, findings, before, pid)
    return findings


def ask_all(url: str, description: Any, count: int, number: int, findings: Findings) -> None:
    """Ask for each operation as described, and with requests that break the description."""
    plans = []
    for mode in GenerationMode:
        drawn_from = narrowed(description) if mode is GenerationMode.POSITIVE else description
        schema = schemathesis.openapi.from_dict(drawn_from)
        operations = [each.ok() for each in schema.get_all_operations()]
        plans += [(mode, each) for each in operations if each.body or mode is GenerationMode.POSITIVE]
    share = -(-count // sum(bool(operation.body) for _, operation in plans))  # the others have few forms
    with requests.Session() as session:
        for place, (mode, operation) in enumerate(plans):

            @seed(number + place)
            @settings(
                max_examples=share,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def every(case: Case) -> None:
                ask(url, case, session, findings)

            every()
            asked = findings.statuses.total()
            print(f"{operation.method.upper()} {operation.path}, {mode.value}: {asked} asked", flush=True)


def check_rest(client: httpx.Client, findings: Findings, before: Held, pid: int) -> None:
    """Faults if slots are not free, or if the process holds more than before."""
    deadline = time.monotonic() + HANGS
    while (busy := busy_slots(client)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if busy:
        findings.fault(f"{busy} slots are busy, though nobody asks", "GET /state")
    after = Held.by(pid)
    print(f"before: {before}\nafter:  {after}")
    if after.threads > before.threads + MORE_THREADS:
        findings.fault("more threads than before", f"{before} {after}")
    if after.files > before.files + MORE_FILES:
        findings.fault("more open files than before", f"{before} {after}")
    if after.memory > before.memory + MORE_MEMORY:
        findings.fault("more memory than before", f"{before} {after}")


def busy_slots(client: httpx.Client) -> int:
    models = client.get("/state").json()["models"]
    return sum(slot["busy"] for model in models for slot in model.get("slots", ())) + sum(
        model.get("waiting", 0) for model in models
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="requests (2000)")
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other requests (1)")
    given_options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ["--backend", "cpu_ref", "--context", 512, "--queue", 8]
        with serving(*write_models(Path(folder)), *words, stderr=None) as server:
            begun = time.monotonic()
            findings = run(server.url, server.process.pid, given_options.count, given_options.seed)
            ended = server.process.poll()
    if ended is not None:
        findings.fault(f"the server ended with {ended}", "")
    print(
        f"{findings.statuses.total()} requests in {time.monotonic() - begun:.0f} s: {dict(findings.statuses)}"
    )
    print(f"{len(findings.faults)} kinds of faults")
    return int(bool(findings.faults))


if __name__ == "__main__":
    sys.exit(main())

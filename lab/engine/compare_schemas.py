"""Lets a model answer with the schemas of JSON-Schema-Test-Suite: each answer must be valid, or the schema refused.

The suites are folders such as `tests/draft7` and `tests/draft2020-12` of
https://github.com/json-schema-org/JSON-Schema-Test-Suite; a folder's name tells the draft of its schemas.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from backbay_engine import LLM, ResponseFormatError, load

OTHER_RULES = ("ecmascript-regex",)  # of which jsonschema knows Python's alone
JUDGES = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
MODEL = Path(__file__).parents[2] / "examples/models/backbay-tiny-f16.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", type=Path, nargs="+", metavar="SUITE")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--answers", type=int, default=8, help="for each schema")
    parser.add_argument("--max-tokens", type=int, default=48)
    args = parser.parse_args()
    counted: Counter[str] = Counter()
    with load(args.model, args.backend, context=128, parallel=args.answers, num_threads=1) as llm:
        for suite in args.suites:
            judge = JUDGES[suite.name]
            for name, schema in schemas(suite):
                kind, told = judged(llm, schema, judge, args.answers, args.max_tokens)
                counted[kind] += 1
                if kind == "invalid":
                    print(f"{suite.name}/{name}: {json.dumps(schema)}: {told}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counted.items())))
    sys.exit(1 if counted["invalid"] else 0)


def schemas(suite: Path) -> Iterator[tuple[str, Any]]:
    """The schemas of the suite, with their files and descriptions."""
    for path in sorted(suite.rglob("*.json")):
        if path.stem in OTHER_RULES:
            continue
        for group in json.loads(path.read_text("utf-8")):
            yield f"{path.stem}: {group['description']}", group["schema"]


def judged(llm: LLM, schema: Any, judge: Any, answers: int, most: int) -> tuple[str, str]:
    """Whether a schema was refused, or its answers were valid; and the answer that was not."""
    wanted = {"type": "json_schema", "schema": schema}
    try:
        handles = [
            llm.submit("x", response_format=wanted, seed=seed, temperature=2.0, top_k=0, max_tokens=most)
            for seed in range(answers)
        ]
    except ResponseFormatError:
        return "refused", ""
    ended = [found.text for found in (handle.result() for handle in handles) if found.finish_reason == "stop"]
    for text in ended:
        try:
            judge(schema).validate(json.loads(text))
        except (ValueError, jsonschema.ValidationError) as error:
            return "invalid", f"{text!r}: {error}".partition("\n")[0]
    return ("valid" if ended else "cut"), ""


if __name__ == "__main__":
    main()

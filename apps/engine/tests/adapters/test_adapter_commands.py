"""Adapters on the command line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from adapter_files import random_pairs, write_adapter, write_peft
from small_llama import write_small_llama

from backbay.cli import main
from backbay_engine import load

SMALL = ["--context", "64", "--threads", "1", "--backend", "cpu_ref", "--json"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "m.gguf", endless=True)


def said(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([*map(str, words), *SMALL]) == 0
    return json.loads(capsys.readouterr().out)


def test_run_takes_adapters_with_scales(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_adapter(tmp_path / "a:1", random_pairs(model, 4, 1), alpha=4)
    second = write_adapter(tmp_path / "b.gguf", random_pairs(model, 4, 2), alpha=4)
    words = ["run", model, "-p", "hi", "-n", "8", "--temperature", "0"]
    with load(model, "cpu_ref", context=64, adapters={"a": first, "b": second}) as llm:

        def tokens(adapter: Any) -> list[int]:
            return llm.generate("hi", adapter=adapter, temperature=0, max_tokens=8).tokens

        wanted = [tokens(None), tokens({"b": 1.0}), tokens({"a": 0.5, "b": 1})]
    found = [
        said(capsys, *words)["tokens"],
        said(capsys, *words, "--adapter", second)["tokens"],
        said(capsys, *words, "--adapter", f"{first}:0.5", "--adapter", second)["tokens"],
    ]
    assert found == wanted
    assert len({tuple(each) for each in found}) == 3


def test_memory_counts_adapters(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = random_pairs(model, 8, 1)
    file = write_adapter(tmp_path / "a.gguf", pairs, alpha=4)
    totals = []
    for words in ([], ["--adapter", file]):
        memory = said(capsys, "memory", model, *words)["memory"]
        totals.append(sum(each["size"] for each in memory["cpu"]["cache"]))
    assert totals[1] - totals[0] == sum(part.nbytes for pair in pairs.values() for part in pair)


def test_the_page_shows_what_works(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[4] / "docs" / "adapters.md").read_text()
    program, commands, *_ = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "base.gguf").write_bytes(model.read_bytes())
    for seed, name in enumerate(("sql.gguf", "legal.gguf")):
        write_adapter(tmp_path / name, random_pairs(model, 4, seed), alpha=4)
    module = {"model.layers.0.self_attn.q_proj": random_pairs(model, 4, 3)["blk.0.attn_q.weight"]}
    write_peft(tmp_path / "tone-lora", module, {"r": 4, "lora_alpha": 4})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKBAY_BACKEND", "cpu_ref")
    exec(program, {})
    assert capsys.readouterr().out == "{'sql': 'sql.gguf', 'legal': 'legal.gguf'}\n"
    for line in commands.splitlines():
        name, *words = shlex.split(line)
        assert name == "backbay"
        assert main([*words, "--context", "64"]) == 0

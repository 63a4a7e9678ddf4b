"""The commands: what they print, for people and for programs, and how they refuse."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from predicting_models import with_right_head
from scripted_model import write_scripted_model
from small_llama import CONTEXT, write_small_llama

import backbay
from backbay import AllocationStatus, BackendMemory, DeviceInfo, DeviceMemory, Memory
from backbay.cli import main
from backbay_engine.cli.memory import shortfalls

SMALL = ["--context", "64", "--threads", "1"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf"))


@pytest.fixture(autouse=True)
def logging_as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(list(words)) == status
    return capsys.readouterr().out


def test_run_prints_the_answer_and_its_timings(path, capsys):
    words = ["run", path, "-p", "hi", "-n", "5", "--backend", "cpu_ref", "--temperature", "0", *SMALL]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("\n")
    assert "ended by" in printed.err
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["tokens"]) <= 5
    assert answer["timings"]["prompt_tokens"] == 3


def test_run_reads_a_prompt_from_standard_input(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    answer = json.loads(
        said(capsys, "run", path, "-p", "-", "-n", "2", "--backend", "cpu_ref", "--json", *SMALL)
    )
    assert answer["timings"]["prompt_tokens"] == 12


def test_run_gives_answers_a_format(path, capsys, tmp_path):
    pytest.importorskip("llguidance")
    schema, grammar, wrong = tmp_path / "schema.json", tmp_path / "grammar.lark", tmp_path / "wrong.json"
    schema.write_text('{"enum": [12, true]}')
    grammar.write_text('start: "a" /[0-9]{2}/')
    wrong.write_text('{"not": {}}')
    words = ["run", path, "-p", "hi", "--backend", "cpu_ref", "--json", *SMALL]
    assert json.loads(json.loads(said(capsys, *words, "--json-schema", str(schema)))["text"]) in (12, True)
    assert re.fullmatch("a[0-9]{2}", json.loads(said(capsys, *words, "--grammar", str(grammar)))["text"])
    for option, file in (("--json-schema", wrong), ("--grammar", wrong), ("--grammar", tmp_path / "none")):
        with pytest.raises(SystemExit) as caught:
            main([*words, option, str(file)])
        assert caught.value.code == 2
        assert f"argument {option}: {file}" in capsys.readouterr().err


def test_a_conversation_goes_on_until_input_ends(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo\n"))
    printed = said(capsys, "run", path, "--chat", "-n", "3", "--backend", "cpu_ref", "--json", *SMALL)
    decoder, answers = json.JSONDecoder(), []
    while printed.strip():
        answer, end = decoder.raw_decode(printed.lstrip())
        answers.append(answer)
        printed = printed.lstrip()[end:]
    assert len(answers) == 2
    assert answers[1]["timings"]["reused_tokens"] > 0  # the first question and answer were there already


def test_run_takes_its_text_as_an_argument_and_from_a_pipe(path, capsys, monkeypatch):
    words = ["-n", "2", "--backend", "cpu_ref", "--json", "--temperature", "0", *SMALL]
    given = json.loads(said(capsys, "run", path, "-p", "from a pipe", *words))
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert json.loads(said(capsys, "run", path, *words))["tokens"] == given["tokens"]
    assert json.loads(said(capsys, "run", path, *words, "from a pipe"))["tokens"] == given["tokens"]
    assert main(["run", path, "twice", "-p", "twice", *words]) == 2
    assert "the text is given twice" in capsys.readouterr().err


def test_a_chat_that_outgrows_its_context_goes_on(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n" + "x" * 200 + "\nthree\n"))
    words = ["run", path, "--chat", "-n", "12", "--backend", "cpu_ref", "--context", "48", "--threads", "1"]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert "the context holds 48: the oldest question and its answer are left out" in told
    assert "the context holds 48; ask for less" in told
    assert told.count("ended by") == 3
    assert main([*words, "-p", "x" * 200]) == 1


def test_run_says_what_is_missing(path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["run", path]) == 2
    assert "give a prompt with -p" in capsys.readouterr().err
    assert main(["run", path, "-p", "x" * 100, "--backend", "cpu_ref", *SMALL]) == 1
    assert "101 tokens, the context holds 64" in capsys.readouterr().err


def test_tokenize_shows_each_token(path, capsys):
    tokens = json.loads(said(capsys, "tokenize", path, "hé", "--json"))
    assert [token["id"] for token in tokens] == [257, *"hé".encode()]
    assert "4 tokens of 2 characters" in said(capsys, "tokenize", path, "hé")


def test_memory_tells_what_would_be_taken_and_whether_it_fits(path, capsys):
    words = [
        "memory",
        path,
        "--backend",
        "cpu_ref",
        "--context",
        "512",
        "--parallel",
        "2",
        "--kv-dtype",
        "f16",
    ]
    assert "fits, on cpu_ref" in said(capsys, *words)
    report = json.loads(said(capsys, *words, "--json"))
    assert report["fits"]
    kv = sum(layer["size"] for layer in report["memory"]["cpu"]["cache"])
    assert kv == 2 * 2 * 512 * 16 * 2 * 2  # layers, keys and values, cells of 16 numbers, f16, two sequences


def test_memory_is_short_on_a_device_that_has_nothing_free():
    gpus = tuple(
        DeviceMemory(f"GPU {n}", f"GPU:{n}", graph=Memory(100, AllocationStatus.Unallocated))
        for n in range(3)
    )
    memory = BackendMemory(Memory(), DeviceMemory("CPU", "CPU:0"), gpus)
    devices = [
        DeviceInfo("CPU:0", "CPU"),
        *(DeviceInfo(f"GPU:{n}", f"GPU {n}", free_memory=free) for n, free in enumerate((0, None, 30))),
    ]
    assert shortfalls(memory, devices) == {"GPU:0": 100, "GPU:2": 70}


def test_bench_measures_backends_side_by_side_and_draws_them(path, capsys, tmp_path):
    names = sorted(backbay.backends())
    plot = tmp_path / "rates.svg"
    words = ["bench", path, "--backend", ",".join(names), "--prompt", "8", "--generate", "4", "--rounds", "2"]
    report = json.loads(said(capsys, *words, "--plot", str(plot), "--json", "--threads", "1"))
    assert sorted(report["results"]) == names
    for summary in report["results"].values():
        assert sorted(summary) == ["pp8", "tg4"]
        assert all(rate["mean"] > 0 for rate in summary.values())
    assert len([e for e in ET.parse(plot).iter() if e.tag.endswith("rect")]) >= 2 * len(names)


@pytest.mark.parametrize("name", sorted(backbay.backends()))
def test_diff_finds_backends_within_their_bounds(path, capsys, tmp_path, name):
    plot = tmp_path / "depth.svg"
    words = ["diff", path, "--a", "cpu_ref", "--b", name, "--json", "--plot", str(plot), *SMALL]
    report = json.loads(said(capsys, *words))
    assert report["first"] is None
    assert [block["name"] for block in report["blocks"]][-1] == "logits"
    assert len(report["ops"]) > 20
    assert "polyline" in plot.read_text()


def test_diff_says_when_f16_alone_explains_the_difference(capsys):
    tiny = str(Path(__file__).parents[4] / "examples" / "models" / "backbay-tiny-f16.gguf")
    words = ["diff", tiny, "--a", "cpu_ref", "--b", "cpu_ref", "--context", "64"]
    assert "f16" not in said(capsys, *words)
    if "onnx" in backbay.backends():  # its cache is in f16
        words[5] = "onnx"
        assert "rounding to f16, by 4.9e-04 each time, explains the whole difference" in said(capsys, *words)
        assert "f16" not in said(capsys, *words, "--kv-dtype", "f32")


def test_bench_takes_all_backends_that_work_and_no_longer_texts_than_the_model(path, capsys, monkeypatch):
    from backbay.discovery import entry
    from backbay_engine.cli import bench

    class Broken(entry("cpu_ref").load()):
        def __init__(self, *_):
            raise backbay.BackendUnavailableError("it has no library")

    monkeypatch.setattr(bench, "backends", lambda: ["broken", "cpu_ref"])
    opened = bench.open_model
    monkeypatch.setattr(
        bench, "open_model", lambda args, name: Broken() if name == "broken" else opened(args, name)
    )
    words = ["bench", path, "--rounds", "1", "--generate", "0", "--threads", "1", "--json"]
    assert main([*words, "--backend", "all"]) == 0
    printed = capsys.readouterr()
    assert "left out: it has no library" in printed.err
    assert "was trained for" not in printed.err
    assert list(json.loads(printed.out)["results"]["cpu_ref"]) == [f"pp{CONTEXT - 1}"]


def test_an_option_that_no_backend_has_is_refused_before_anything_is_measured(path, capsys, monkeypatch):
    for where in ("trials.backend_choice.try_task", "cli.profile.measure_peak_rates"):
        monkeypatch.setattr(f"backbay_engine.{where}", lambda *_: pytest.fail("it is measured"))
    for backend in ([], ["--backend", "cpu_ref"]):
        assert main(["profile", path, "--option", "weigths=copied", *backend]) == 2
        assert "unknown option 'weigths'; nearest: 'weights'" in capsys.readouterr().err


def test_layers_for_gpus_that_are_not_there_are_said(path, capsys):
    words = ["run", path, "x", "-n", "1", "--backend", "cpu_ref", *SMALL, "--gpu-layers"]
    assert main([*words, "2"]) == 0
    assert "2 layers are wanted on GPUs: cpu_ref has none on this machine" in capsys.readouterr().err
    assert main([*words, "0"]) == 0
    assert "GPU" not in capsys.readouterr().err


def test_quantize_says_why_weights_have_other_dtypes(path, capsys, tmp_path):
    told = said(capsys, "quantize", path, "-o", str(tmp_path / "small.gguf"))
    assert "q5_0 and q8_0: rows of weights that are no multiple of 256 numbers" in told
    told = said(capsys, "quantize", path, "-o", str(tmp_path / "f16.gguf"), "--dtype", "f16")
    assert "256" not in told


def test_diff_names_the_first_op_that_is_wrong(path, capsys, monkeypatch):
    from backbay import ops
    from backbay.discovery import entry

    reference = entry("cpu_ref").load()
    silu = reference.kernels[ops.silu]

    class Wrong(reference):
        kernels = {**reference.kernels, ops.silu: lambda x, up: silu(x, up) * 1.001}

    monkeypatch.setattr("backbay_engine.cli.diff.open_model", opened_with(Wrong))
    report = json.loads(said(capsys, "diff", path, "--b", "wrong", "--json", *SMALL, status=1))
    assert report["first"].endswith("silu")
    assert "layer 0" in report["first"]


def opened_with(wrong):
    from backbay_engine import load

    return lambda args, name: load(args.model, wrong if name == "wrong" else name, context=64)


def test_log_lines_can_be_json(path, capsys):
    Path(path)
    assert (
        main(["run", path, "-p", "x", "-n", "1", "--backend", "cpu_ref", "--context", "300", "--log", "json"])
        == 0
    )
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert any("300" in json.loads(line)["message"] for line in lines)
    assert any(json.loads(line).get("memory", {}).get("total") for line in lines)


def test_words_may_follow_options(path, capsys):
    plain = said(capsys, "tokenize", path, "ab", "--no-special")
    assert said(capsys, "tokenize", path, "--no-special", "ab") == plain
    dashed = json.loads(said(capsys, "tokenize", "--no-special", "--json", "--", path, "-x"))
    assert [one["token"] for one in dashed] == ["-", "x"]


def test_run_goes_on_with_the_conversation_of_a_file(path, capsys, tmp_path):
    file, common = tmp_path / "talk.safetensors", ["-n", "6", "--temperature", "0", "--json", *SMALL]
    for words in (["-p", "once"], ["-p", "once", "--chat"]):
        file.unlink(missing_ok=True)
        run = ["run", path, *words, *common, "--session", str(file)]
        first = json.loads(said(capsys, *run, "--backend", "ggml"))
        second = json.loads(said(capsys, *run, "--backend", "cpu_ref"))  # another backend goes on
        assert first["timings"]["reused_tokens"] == 0
        before = first["timings"]["prompt_tokens"] + len(first["tokens"])
        assert second["timings"]["prompt_tokens"] > before - 1
        assert second["timings"]["reused_tokens"] >= first["timings"]["prompt_tokens"]
        other = ["--chat"] if "--chat" not in words else []
        assert main(["run", path, "-p", "x", *other, *common, "--session", str(file)]) == 2
        assert "chat" in capsys.readouterr().err


def test_run_refuses_a_session_that_it_cannot_go_on_with(path, capsys, tmp_path):
    file = tmp_path / "talk.safetensors"
    run = ["run", path, "-p", "x", "-n", "2", "--backend", "cpu_ref", *SMALL, "--session", str(file)]
    file.write_bytes(b"no snapshot")
    assert main(run) == 1
    assert "damaged" in capsys.readouterr().err
    assert file.read_bytes() == b"no snapshot"  # nothing is lost
    file.unlink()
    assert main(run) == 0
    whole = file.read_bytes()
    other = str(write_small_llama(tmp_path / "other.gguf", seed=9))
    assert main(["run", other, *run[2:]]) == 1
    assert "only the same weights can go on" in capsys.readouterr().err
    assert file.read_bytes() == whole
    assert main([*run, "--image", "x.png"]) == 2
    with pytest.raises(SystemExit):  # before the model answers
        main(["run", "no.gguf", "-p", "x", "--session", str(tmp_path / "nowhere" / "talk.safetensors")])
    assert "argument --session" in capsys.readouterr().err


def test_run_guesses_tokens(path, tmp_path, capsys):
    words = ["run", path, "-p", "abcabcabcabc", "-n", "30", "--backend", "cpu_ref", "--temperature", "0"]
    plain = json.loads(said(capsys, *words, "--json", *SMALL))
    for guessing in (["--speculate"], ["--draft", path], ["--draft", path, "--draft-backend", "ggml"]):
        found = json.loads(said(capsys, *words, *guessing, "--json", *SMALL))
        assert found["tokens"] == plain["tokens"]
    with pytest.raises(SystemExit):
        main([*words, "--speculate", "--draft", path])
    right = str(with_right_head(Path(path), tmp_path / "head.gguf"))
    found = said(capsys, "run", right, *words[2:], "--mtp", "--json", *SMALL)
    plain = said(capsys, "run", right, *words[2:], "--json", *SMALL)
    assert json.loads(found)["tokens"] == json.loads(plain)["tokens"]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_chat_prints_reasoning_beside_the_answer(tmp_path, capsys, quiet):
    words = [
        "run",
        str(write_scripted_model(tmp_path / "m.gguf")),
        "--chat",
        "-p",
        "[think]",
        "--backend",
        "cpu_ref",
    ]
    words += ["--context", "128"]
    assert main([*words, *(["--quiet"] if quiet else [])]) == 0
    printed = capsys.readouterr()
    assert printed.out == "Yes.\n"
    assert printed.err.startswith("Hm.\n") != quiet
    answer = json.loads(said(capsys, *words, "--json"))
    assert (answer["text"], answer["reasoning"].strip()) == ("Yes.", "Hm.")

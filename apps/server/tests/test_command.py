"""The command line of `backbay serve`."""

from __future__ import annotations

import resource
from argparse import ArgumentParser
from pathlib import Path

import httpx
import numpy as np
import pytest
from processes import serving
from scripted_model import says, write_embedder, write_scripted_model

from backbay import DType, OptionError
from backbay.cli import main
from backbay_engine.cache import CausalCache
from backbay_server.catalogue.catalogue import CatalogueEntry, load_entry
from backbay_server.command import add_arguments, settings_of
from backbay_server.settings import ServerSettings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_scripted_model(tmp_path / "scripted.gguf")
    return tmp_path / "scripted.gguf"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model, or a folder of models"),
        (["none.gguf"], "there is no model 'none.gguf'"),
        (["hf:org/none"], "hf download org/none"),
        (["MODEL", "--alias", "x"], "--alias takes NAME=MODEL, got 'x'"),
        (["MODEL", "--backend", "gmlg"], "no backend 'gmlg'"),
        (["MODEL", "--backend", "cpu_ref", "--backend", "gmlg"], "no backend 'gmlg'"),
        (["MODEL", "--api-key-file", "none"], "the keys in none cannot be read"),
        (["--models", "none"], "a readable folder"),
        (["DAMAGED"], "damaged.gguf"),
        (["MODEL", "--host", "1.2.3.4"], "1.2.3.4 port 0: "),
        (["MODEL", "MODEL", "--draft", "MODEL"], "a draft guesses for one model"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_served(
    words: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = model.with_name("damaged.gguf")
    damaged.write_bytes(model.read_bytes()[:5000])
    places = {"MODEL": str(model), "DAMAGED": str(damaged)}
    assert main(["serve", *(places.get(word, word) for word in words), "--port", "0"]) in {1, 2}
    out, err = capsys.readouterr()
    assert not out
    assert message in err


@pytest.mark.fault("the port is taken", "a line that names it and --port")
def test_a_port_that_is_taken_is_an_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(model, "--backend", "cpu_ref") as server:
        port = server.url.rpartition(":")[2]
        assert main(["serve", str(model), "--backend", "cpu_ref", "--port", port]) == 1
    assert (
        f"127.0.0.1 port {port}: Address already in use; choose another with --port"
        in capsys.readouterr().err
    )


@pytest.mark.fault("a process that may open few files", "half of them serve connections")
def test_a_process_that_may_open_few_files_serves(model: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    with serving(model, "--backend", "cpu_ref", preexec_fn=few) as server:
        assert httpx.get(f"{server.url}/health", timeout=300).status_code == 200


def test_one_file_is_served_on_two_backends_at_once(model: Path) -> None:
    with serving(model, "--backend", "cpu_ref", "--backend", "onnx") as server:

        def asked(name: str) -> str:
            body = {"model": name, "messages": [{"role": "user", "content": "[hello]"}]}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).json()
            assert answer["model"] == name
            return str(answer["choices"][0]["message"]["content"])

        assert asked("scripted") == asked("scripted@onnx") == "Hello, world!"
        state = httpx.get(f"{server.url}/state", timeout=300).json()
        found = {each["name"]: (each["backend"], each["status"]) for each in state["models"]}
        assert found == {"scripted": ("cpu_ref", "ready"), "scripted@onnx": ("onnx", "ready")}
        assert httpx.get(f"{server.url}/ready", timeout=300).status_code == 200


def test_options_are_those_of_the_first_backend(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser("serve")
    add_arguments(parser)
    settings = settings_of(parser.parse_args([str(model), *["--backend", "cpu_ref", "--backend", "onnx"]]))
    assert (settings.backend, settings.further_backends, settings.max_loaded) == ("cpu_ref", ("onnx",), 2)
    with pytest.raises(SystemExit):
        parser.parse_args([str(model), *["--backend", "onnx", "--backend", "onnx"]])
    assert "--backend onnx is named twice" in capsys.readouterr().err
    wrong = ServerSettings(backend="cpu_ref", further_backends=("onnx",), options={"none": "1"})
    with pytest.raises(OptionError, match="none"):
        load_entry(wrong, CatalogueEntry("scripted", model))
    load_entry(wrong, CatalogueEntry("scripted@onnx", model, backend="onnx")).close()


def test_options_reach_the_server(model: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sesame\n")
    words = [
        "--backend",
        "cpu_ref",
        "--alias",
        "gpt=scripted",
        "--parallel",
        2,
        "--context",
        256,
        "--no-page",
    ]
    words += [
        "--api-key-file",
        tmp_path / "keys",
        "--allow-host",
        "my.name",
        "--allow-origin",
        "https://a.example",
    ]
    with serving(model, *words) as server, httpx.Client(base_url=server.url, timeout=300) as client:
        assert client.get("/v1/models").status_code == 401
        client.headers["authorization"] = "Bearer sesame"
        names = [each["id"] for each in client.get("/v1/models").json()["data"]]
        assert sorted(names) == ["gpt", "scripted"]
        for name in names:
            body = {"model": name, "messages": [{"role": "user", "content": "[hello]"}]}
            assert client.post("/v1/chat/completions", json=body).json()["model"] == name
        (model,) = client.get("/state").json()["models"]
        assert (len(model["slots"]), model["context"]) == (2, 256)
        assert client.get("/").status_code == 404
        assert client.get("/metrics").status_code == 404
        assert client.get("/health", headers={"host": "my.name"}).status_code == 200
        assert client.get("/health", headers={"host": "other.name"}).status_code == 403
        allowed = client.get("/v1/models", headers={"origin": "https://a.example"}).headers
        assert allowed["access-control-allow-origin"] == "https://a.example"


def test_models_take_turns_in_memory(model: Path) -> None:
    second = model.with_name("second.gguf")
    second.write_bytes(model.read_bytes())
    words = ("--models", model.parent, "--max-loaded", 1, "--backend", "cpu_ref")
    with serving(*words) as server, httpx.Client(base_url=server.url, timeout=300) as client:
        for name in ("scripted", "second", "scripted"):
            body = {"model": name, "messages": [{"role": "user", "content": "[hello]"}]}
            answer = client.post("/v1/chat/completions", json=body).json()
            assert answer["choices"][0]["message"]["content"] == "Hello, world!"
            held = client.get("/state").json()["models"]
            assert [each["name"] for each in held if each["status"] == "ready"] == [name]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_the_dtype_of_caches_reaches_the_engine(model: Path, dtype: str) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    settings = settings_of(parser.parse_args([str(model), "--kv-dtype", dtype, "--backend", "cpu_ref"]))
    with load_entry(settings, CatalogueEntry("scripted", model)) as llm:
        assert isinstance(llm.cache, CausalCache)
        assert llm.cache.storage.dtype == DType[dtype.upper()]


def test_the_places_of_layers_reach_the_engine(
    model: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    words = [str(model), "--backend", "cpu_ref", "--gpu-layers", "2", "--tensor-split"]
    settings = settings_of(parser.parse_args([*words, "3,1"]))
    assert settings.tensor_split == (3.0, 1.0)
    load_entry(settings, CatalogueEntry("scripted", model)).close()
    assert "2 layers are wanted on GPUs: cpu_ref has none on this machine" in caplog.text
    with pytest.raises(SystemExit):
        parser.parse_args([*words, "3,-1"])
    assert "must be shares such as 3,1, got '3,-1'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--speculate"], ["--draft", "MODEL"]], ids=["speculate", "draft"])
def test_tokens_are_guessed_and_timings_count_them(words: list[str], model: Path) -> None:
    write_scripted_model(model, {"again": says(" one", loops=True)})
    asked = {"prompt": "[again] one one one", "temperature": 0, "max_tokens": 64}
    guessing = [str(model) if word == "MODEL" else word for word in words]
    with serving(model, "--backend", "cpu_ref", *guessing) as server:
        found = httpx.post(f"{server.url}/completion", json=asked, timeout=300).json()
    with serving(model, "--backend", "cpu_ref") as server:
        plain = httpx.post(f"{server.url}/completion", json=asked, timeout=300).json()
    assert found["content"] == plain["content"] == " one" * 64
    assert 0 < found["timings"]["draft_n_accepted"] <= found["timings"]["draft_n"]
    assert "draft_n" not in plain["timings"]


def test_a_model_that_cannot_guess_is_served_without(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    vectors = write_embedder(model.with_name("vectors.gguf"), {"north": np.eye(8, dtype=np.float32)[0]})
    settings = ServerSettings(models=(str(vectors),), backend="cpu_ref", speculate="ngram")
    with load_entry(settings, CatalogueEntry("vectors", vectors)) as llm:
        assert llm.embed(["[north]"])[0].argmax() == 0
    assert "vectors: tokens cannot be guessed" in caplog.text


def test_a_model_without_a_head_that_predicts_is_served_without(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    settings = settings_of(parser.parse_args([str(model), "--backend", "cpu_ref", "--mtp"]))
    with load_entry(settings, CatalogueEntry("small", model)) as llm:
        assert llm.generate("[ok]", temperature=0).text == "ok"
    assert "small: speculate='mtp' needs a head" in caplog.text

"""A model that was written out is run by plain ONNX Runtime, and answers as it does here."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_llama import write_small_llama

import backbay
from backbay.cli import main
from backbay_engine import load

pytestmark = pytest.mark.skipif(
    "onnx" not in backbay.backends(), reason="the backend that writes ONNX is missing"
)
TINY = Path(__file__).parents[1] / "examples" / "models" / "backbay-tiny-f16.gguf"
LIMITED = """
import resource, signal, sys
from backbay.cli import main
model, folder, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit),) * 2)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.exit(main(["export", model, "-o", folder, "--backend", "onnx", "--force"]))
"""
TOKENS, CELLS = [7, 70, 200], 64
PLAIN = f"""
import sys
import numpy as np
import onnxruntime
written, tokens = sys.argv[1], int(sys.argv[2])
session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
caches = [i.name for i in session.get_inputs() if i.name.startswith(("keys.", "values."))]
assert sorted(caches) == ["keys.0", "keys.1", "values.0", "values.1"]
held = {{name: np.zeros(({CELLS}, 16), np.float32) for name in caches}}
rows = []
for first in range(0, {len(TOKENS)}, tokens):
    cells = np.arange(first, first + tokens, dtype=np.int32)
    mask = np.where(np.arange({CELLS})[None, :] <= cells[:, None], 0, -np.inf).astype(np.float32)
    fed = dict(tokens=np.array({TOKENS}, np.int32)[cells], positions=cells, cells=cells, mask=mask)
    fed["outputs"] = np.arange(tokens, dtype=np.int32)
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, fed | held)))
    held = {{name: found[name + "_out"] for name in caches}}
    rows.append(found["result"])
np.save("rows.npy", np.concatenate(rows))
"""  # in a process of its own: a process has one set of threads for ONNX Runtime


@pytest.fixture(autouse=True)
def handlers_of_logging():
    """The command sets up logging, for the streams of its test."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.mark.parametrize("portable", [[], ["--portable"]])
@pytest.mark.parametrize("tokens", [1, 3])
def test_plain_onnx_runtime_gives_the_same_logits(model, tmp_path, capsys, tokens, portable):
    words = [
        "export",
        str(model),
        "--backend",
        "onnx",
        "-o",
        str(tmp_path),
        "--tokens",
        str(tokens),
        *portable,
    ]
    assert main([*words, "--context", str(CELLS), "--kv-dtype", "f32", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["model"]
    onnx.checker.check_model(written)
    nodes = onnx.load(written, load_external_data=False).graph.node
    assert ({node.domain for node in nodes} == {""}) == bool(portable)
    subprocess.run([sys.executable, "-c", PLAIN, written, str(tokens)], check=True, cwd=tmp_path)
    with load(model, "cpu_ref", context=CELLS, kv_dtype="f32") as llm:
        expected = llm.logits(TOKENS)
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), expected, rtol=1e-4, atol=1e-4)


def test_a_backend_without_portable_exports_says_so(model, tmp_path, capsys):
    assert main(["export", str(model), "--backend", "cpu_ref", "-o", str(tmp_path), "--portable"]) == 2
    assert "exports" in capsys.readouterr().err


def test_a_backend_that_writes_no_models_says_which_does(model, tmp_path, capsys):
    assert main(["export", str(model), "--backend", "cpu_ref", "-o", str(tmp_path)]) == 1
    assert "writes no models; onnx does" in capsys.readouterr().err


@pytest.mark.fault("an export fails half way", "the older export stays whole")
def test_an_export_that_fails_leaves_the_older_one(tmp_path):
    folder = tmp_path / "model"
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, str(TINY), str(folder)]
    for limit, ends in ((1 << 40, True), (50_000, False)):
        done = subprocess.run([*command, str(limit)], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is ends, done.stderr
    assert "model.onnx cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "weights.bin"]
    opens = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
    subprocess.run([sys.executable, "-c", opens, folder / "model.onnx"], check=True)


@pytest.mark.fault("a folder to export into holds files", "a usage error naming `--force`")
def test_an_export_replaces_files_only_if_it_is_told_to(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    words = ["export", str(TINY), "-o", str(tmp_path), "--backend", "onnx"]
    assert main(words) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert main([*words, "--force"]) == 0

"""The table of the ops that architectures use: it is that of the models, and an op that none uses has a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from backbay import OPS
from backbay.cli import main
from backbay_engine.models import architectures
from backbay_engine.models.op_users import OP_USERS

TOOL = Path(__file__).parents[4] / "lab" / "engine" / "op_users.py"
PATCHES = "the seeds' interface: the encoders of pictures here multiply whole patches"
SEEDS = "the seeds' interface"
COMPOSITES = "composites"
DELTA_RULE = "the composite of delta_rule: qwen3next, qwen35 and rwkv7 where a backend has no kernel"
UNUSED = {
    "conv2d": PATCHES,
    "conv3d": PATCHES,
    "interpolate": PATCHES,
    "variance": COMPOSITES,
    "argsort": COMPOSITES,
    "mulmat_full_prec": COMPOSITES,
    "neg": DELTA_RULE,
    "stack": DELTA_RULE,
    "exp": DELTA_RULE,
    "cumsum": DELTA_RULE,
    "tri": DELTA_RULE,
    "solve_tri": DELTA_RULE,
    "conv1d_dw": SEEDS,
    "sin": SEEDS,
    "cos": SEEDS,
    "diag": SEEDS,
    "duplicate": SEEDS,
    "fill": COMPOSITES,
    "copy": "the seeds' interface: caches write rows",
    "set": "the seeds' interface: caches write rows",
}
"""What uses each op that no architecture uses, and no encoder."""
UNTRACED = {"qwen35moe", "qwen3vlmoe"}
"""Architectures without a small model."""


def test_the_table_is_that_of_the_stored_models():
    shown = subprocess.run([sys.executable, str(TOOL), "--check"], check=False)
    assert shown.returncode == 0, "run lab/engine/op_users.py"


def test_each_op_is_used_or_has_a_reason():
    assert set(OPS) - set(OP_USERS) == set(UNUSED)


def test_each_architecture_is_traced():
    used = {name for names in OP_USERS.values() for name in names}
    traced = {name for name in used if ":" not in name}
    assert traced <= set(architectures())
    assert set(architectures()) - traced == UNTRACED


def test_encoders_of_pictures_and_sound_are_traced_with_both_sides_of_whisper():
    used = {name for names in OP_USERS.values() for name in names}
    heard = {f"audio:{name}" for name in ("ultravox", "voxtral", "qwen2-audio", "whisper", "phi4")}
    assert heard == {name for name in used if name.startswith("audio:")}
    assert {"image:gemma3", "image:llava", "image:mllama", "image:qwen2.5-vl"} < used
    assert set(OP_USERS["im2col"]) == heard, "their convolutions"
    assert {"whisper", "audio:whisper"} <= set(OP_USERS["gelu_erf"])
    assert "mllama" in OP_USERS["tanh"], "the gates of its cross attention"


def test_the_command_names_the_architectures_of_an_op(capsys):
    assert main(["ops", "--json", "--backend", "cpu_ref"]) == 0
    found = {each["op"]: each["architectures"] for each in json.loads(capsys.readouterr().out)}
    assert "gpt-oss" in found["swiglu"]
    assert "audio:whisper" in found["im2col"]
    assert found["conv3d"] == []

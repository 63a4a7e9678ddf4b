"""Families of checkpoints that other packages declare."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import llama_tensors, write_folder, write_llama

from backbay import BackbayError, ModelFileError
from backbay.discovery import open_model

DREAMER = """
from backbay import hookimpl
from backbay_engine.plugin import Family, LazyArray, Settings, changes

def doubled(array: LazyArray, settings: Settings) -> LazyArray:
    return array.map(lambda numbers: numbers * settings.whole("dream_factor"))

FAMILY = Family(
    "dreamer",
    keys=lambda settings: {"dream.factor": settings.whole("dream_factor")},
    changes={r"gate_up_proj": changes.halves("gate_proj", "up_proj"), r"model\\.norm": doubled},
    names={r"model\\.layers\\.(\\d+)\\.dream\\.": r"blk.\\1.dream."},
)

def chosen(settings: Settings) -> Family:
    return FAMILY

@hookimpl
def backbay_checkpoint():
    return chosen
"""


def install(
    site: Path, distribution: str, at: str, body: str = DREAMER, name: str = "DreamerForCausalLM"
) -> None:
    module = distribution.replace("-", "_")
    (site / f"{module}.py").write_text(body)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[backbay.checkpoints]\n{name} = {module}{at}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama's weights as the class DreamerForCausalLM has them."""
    plain = write_llama(tmp_path / "plain")
    config = json.loads((plain / "config.json").read_text())
    config |= {"architectures": ["DreamerForCausalLM"], "dream_factor": 3}
    tensors = llama_tensors(config)
    for block in range(config["num_hidden_layers"]):
        mlp = f"model.layers.{block}.mlp."
        parts = [tensors.pop(f"{mlp}{name}_proj.weight") for name in ("gate", "up")]
        tensors[f"{mlp}gate_up_proj.weight"] = np.concatenate(parts)
        tensors[f"model.layers.{block}.dream.bias"] = np.arange(3, dtype=np.float32)
    return write_folder(tmp_path / "dreamer", config, tensors)


@pytest.mark.parametrize("at", [":FAMILY", ":chosen", ""])
def test_a_package_adds_a_family(site: Path, folder: Path, at: str) -> None:
    install(site, f"dreamer-of-{at.lower()[1:]}", at)
    with open_model(folder) as found, open_model(folder.with_name("plain")) as plain:
        assert found.metadata["general.architecture"] == "dreamer"
        assert found.metadata["dreamer.dream.factor"] == 3
        assert {*found.tensors} - {*plain.tensors} == {"blk.0.dream.bias", "blk.1.dream.bias"}
        for name in ("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight", "token_embd.weight"):
            assert np.array_equal(found.data(name), plain.data(name)), name
        norm = "output_norm.weight"
        assert np.array_equal(found.data(norm).view("<f4"), 3 * plain.data(norm).view("<f4"))


def test_a_class_that_nobody_reads_is_told_with_those_of_packages(site: Path, folder: Path) -> None:
    install(site, "dreamer-of-others", ":FAMILY", name="DreamierForCausalLM")
    with pytest.raises(ModelFileError, match=r"DreamierForCausalLM.*'DreamerForCausalLM'; nearest: "):
        open_model(folder)


def test_two_of_one_name_are_an_error_that_names_both(site: Path, folder: Path) -> None:
    install(site, "dreamer-two", ":FAMILY")
    install(site, "dreamer-three", ":FAMILY")
    with pytest.raises(
        BackbayError, match=r"'DreamerForCausalLM' is provided by dreamer-t\w+ 1.0 and dreamer-t"
    ):
        open_model(folder)


def test_a_package_cannot_take_the_place_of_a_family_of_ours(site: Path, folder: Path) -> None:
    install(site, "dreamer-of-llama", ":FAMILY", name="LlamaForCausalLM")
    with pytest.raises(BackbayError, match=r"provided by backbay-engine [\d.]+ and dreamer-of-llama 1.0"):
        open_model(folder.with_name("plain"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("FAMILY = 3", "3 is neither a backbay_engine.plugin.Family"),
        ("1 / 0", "of dreamer-broken 1.0 cannot be loaded: ZeroDivisionError"),
        ("", "cannot be loaded: AttributeError"),
    ],
)
def test_a_broken_family_names_its_package(
    site: Path, folder: Path, body: str, told: str, monkeypatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "dreamer_broken", raising=False)
    install(site, "dreamer-broken", ":FAMILY", body)
    with pytest.raises(BackbayError, match=told):
        open_model(folder)

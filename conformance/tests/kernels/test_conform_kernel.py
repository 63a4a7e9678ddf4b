"""`backbay conform-kernel`: table, report and exit status."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from backbay import BackbayError
from backbay_conformance.kernels.command import command


def conform_kernel(*words: str) -> int:
    parser = ArgumentParser()
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true")  # as the command line adds it
    return command.run(parser.parse_args(words))


def test_a_right_kernel_passes(tmp_path: Path, capsys) -> None:
    file = tmp_path / "report.json"
    words = ("--native", "--dtypes", "f32,f16", "--size", "smoke", "--json", str(file))
    assert conform_kernel("kernels_to_check:right", "rms_norm", *words) == 0
    assert "core rms_norm" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["backend"] == "kernels_to_check:right"
    assert report["ok"]
    assert {cell["dtype"] for cell in report["cells"]} == {"f32", "f16"}


def test_a_wrong_kernel_fails_with_a_program_and_what_the_op_is(capsys) -> None:
    assert conform_kernel("kernels_to_check:eps_outside", "rms_norm", "--size", "smoke") == 1
    out = capsys.readouterr().out
    assert "\nfrom kernels_to_check import eps_outside\n" in out
    assert "does not keep the contract" in out
    assert "\nrms_norm: x / sqrt((mean of x^2 over dimension 0) + eps), then times weight." in out


@pytest.mark.parametrize(
    ("kernel", "op", "message"),
    [
        ("kernels_to_check", "neg", "a function must be given as module:function"),
        ("no_such_module:right", "neg", "no_such_module:right cannot be imported: ModuleNotFoundError"),
        ("kernels_to_check:rigth", "neg", "module 'kernels_to_check' has no 'rigth'; nearest: 'right'"),
        ("kernels_to_check:os", "neg", "is no function"),
        ("kernels_to_check:right", "ngd", "no op 'ngd'; nearest: 'neg'"),
        ("kernels_to_check:other_parameters", "rms_norm", "does not match its op rms_norm"),
    ],
)
def test_mistakes_are_named(kernel: str, op: str, message: str) -> None:
    with pytest.raises(BackbayError, match=message):
        conform_kernel(kernel, op)

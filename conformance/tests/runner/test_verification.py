"""A certificate is verified by what it says, and by running a sample of its calls again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run_command

from backbay import BackbayError
from backbay_conformance import run
from backbay_conformance.report.certificate import certificate
from backbay_conformance.report.digests import own_files, suite_files
from backbay_conformance.runner.op_speeds import CALLS, TOKENS, speeds
from backbay_conformance.runner.verification import CertificateVerdict, read_certificate, verify
from backbay_conformance.suite.lab import PLAIN
from backbay_register.certificate_command import command
from backbay_register.verifying import verify_whole

OPS = ["add", "neg"]


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of two ops, which have no scenarios."""
    report = run("broken_backends:Three", ["core"], ops=OPS)
    path = tmp_path_factory.mktemp("proof") / "Three-certificate.json"
    path.write_text(json.dumps(certificate(report, own_files("broken_backends:Three"))))
    return path


def contradictions(found: CertificateVerdict) -> set[str]:
    # A run of two ops plans fewer calls than the suite, which no certificate may.
    return {each.what for each in found.findings if each.agrees is False} - {"planned calls"}


def test_a_certificate_holds_where_it_was_issued(issued: Path) -> None:
    found = verify(read_certificate(issued), sample=None)
    assert contradictions(found) == set()
    assert found.sample.counts == {"passed": 18, "failed": 0, "known": 0, "unsupported": 0}
    told = {each.what: each for each in found.findings}
    assert told["the sample's calls"].agrees
    assert told["the other calls"].agrees is None


def test_what_a_certificate_says_wrongly_is_told(issued: Path) -> None:
    said = read_certificate(issued)
    said["digests"] = {"suite": "0", "plugin": "0", "calls": {"core/add": "0", "core/neg": "0"}}
    said["counts"] |= {"passed": 1000, "unsupported": 1}
    said["facts"] |= {"kernels": 70, "backend": "another 1.0", "machine": "another"}
    said["ops"][0] |= {"state": "failing", "passed": 1}
    found = verify(said, sample=None)
    files = {"the suite's Python files", "the plugin's Python files", "the sample's calls"}
    cell = " ".join(said["ops"][0][key] for key in ("profile", "name", "dtype"))
    numbers = {"passed calls", "unsupported calls", "failed calls", "kernels", "plugin", cell}
    assert contradictions(found) == files | numbers
    assert [each.agrees for each in found.findings if each.what == "machine"] == [None]


OF_TWO_OPS = {"planned calls", "missing lines"}
"""What contradicts a certificate of two ops."""


def whole(said: dict[str, Any]) -> set[str]:
    found = verify_whole(said, sample=None, seed=None, jobs=1, progress=None)
    return contradictions(found) - OF_TWO_OPS


def test_numbers_that_follow_from_others_are_computed_anew(issued: Path) -> None:
    said = read_certificate(issued)
    assert whole(said) == set()
    said["states"]["full"] += 1
    assert whole(said) == {"states"}


def test_the_lines_of_another_engine_are_contradicted_by_the_sample(issued: Path) -> None:
    said = read_certificate(issued)
    for each in said["ops"]:
        each["precisions"] = ["f16/f16"]
    assert whole(said) == {"states and precisions of the sample"}


def test_a_certificate_does_not_depend_on_files_that_only_show_results() -> None:
    names = {path.name for path in suite_files()}
    assert {"judgement.py", "draw.py", "report.py"} < names
    assert not {"html.py", "terminal.py"} & names


def test_a_backend_that_has_become_wrong_fails_the_sample(issued: Path) -> None:
    found = verify({**read_certificate(issued), "backend": "broken_backends:WrongEverywhere"}, sample=None)
    assert not found.holds
    assert "the sample" in contradictions(found)
    assert {outcome.name for outcome in found.sample.failures} == set(OPS)


def test_the_sample_is_another_one_each_time_and_may_be_drawn_again(issued: Path) -> None:
    said = read_certificate(issued)
    first = verify(said, sample=1)
    assert len(first.sample.first_calls) == 1
    assert verify(said, sample=1, seed=first.seed).sample.first_calls == first.sample.first_calls


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no certificate"),
        ("[]", "is no certificate"),
        ('{"certificate": "backbay conformance", "suite": "1.0"}', "install that version"),
        ('{"certificate": "backbay conformance", "suite": "1.2"}', "damaged: KeyError"),
    ],
)
def test_what_is_no_certificate_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(text)
    with pytest.raises(BackbayError, match=told):
        verify(read_certificate(path))
    with pytest.raises(BackbayError, match="No such file"):
        read_certificate(tmp_path / "none.json")


def test_the_command_prints_findings_and_their_json(issued: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", str(issued), "--trust", "--sample", "1", "--seed", "3"]
    assert run_command(command, *words) == 1  # two ops are no default run
    shown = capsys.readouterr().out
    assert "the certificate does not hold here (sample 3:" in shown
    assert "planned calls" in shown
    assert run_command(command, *words, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["holds"]
    assert found["sample"]["counts"]["failed"] == 0


def test_speeds_stand_beside_the_reference() -> None:
    found = speeds("broken_backends:Three", PLAIN)
    assert {(speed.op, speed.tokens) for speed in found} == {("mulmat", n) for n in TOKENS} | {
        ("add", n) for n in TOKENS
    }
    assert all(speed.seconds > 0 and speed.times > 0 for speed in found)
    assert speeds("cpu_ref", PLAIN) == []
    assert {op for op, _ in CALLS} >= {"mulmat", "scaled_dot_product_attention"}

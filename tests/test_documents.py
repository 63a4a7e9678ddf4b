"""What the documents show is what happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
from doc_blocks import ROOT, blocks

from backbay import CONTRACT_VERSION
from backbay.cli import main
from backbay_conformance import bound

README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("lab/**/*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("apps/*/README.md"),
        *ROOT.glob("plugins/*/README.md"),
    ]
)


def run(program: Path | str, where: Path, *arguments: str, status: int = 0, **variables: str) -> str:
    environment, command = {**os.environ, **variables}, [sys.executable, program, *arguments]
    ended = subprocess.run(command, check=False, cwd=where, env=environment, capture_output=True, text=True)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout


def programs_of_the_readme() -> list[str]:
    """Its programs and their outputs: the smallest backend, the answers of a model, and a graph."""
    return [block.text for block in blocks("README.md") if block.language in ("python", "text")]


def test_the_smallest_backend_of_the_readme_keeps_the_contract(tmp_path):
    backend, proof, *_ = programs_of_the_readme()
    [command] = re.findall(r"^backbay (conform .*)$", README, re.MULTILINE)
    assert f'contract_version = "{CONTRACT_VERSION}"' in backend
    (tmp_path / "mine.py").write_text(backend)
    seconds = re.compile(r"[\d.]+ s\)$", re.MULTILINE)
    assert seconds.sub("s)", run("-m", tmp_path, "backbay", *command.split())).endswith(
        seconds.sub("s)", proof)
    )


def test_the_readme_tells_what_a_wrong_kernel_does(tmp_path):
    backend, *_ = programs_of_the_readme()
    [command] = re.findall(r"^backbay (conform .*)$", README, re.MULTILINE)
    (wrong, right, count) = re.search(r"With `(.*)` in place of `(.*)`, (\d+) calls fail", README).groups()
    assert right in backend
    (tmp_path / "mine.py").write_text(backend.replace(right, wrong))
    printed = run("-m", tmp_path, "backbay", *command.split(), status=1)
    assert f" {count} failed, " in printed
    assert "\nimport backbay\n" in printed


def test_the_programs_of_the_readme_print_what_the_readme_says(tmp_path):
    *_, answers, output, graph = programs_of_the_readme()
    assert len(answers.splitlines()) <= 12
    [last] = re.findall(r"print\(.*\)  # (.*)", graph)
    (tmp_path / "programs.py").write_text(answers + graph)
    assert run(tmp_path / "programs.py", ROOT) == f"{output}{last}\n"


def installed(document: str, folder: Path) -> tuple[list[Path], list[str], Path]:
    """The files of a document that is a package, its outputs, and where the package lies now."""
    written, outputs = [], []
    for block in blocks(document):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            written.append(path)
        elif block.language == "text":
            outputs.append(block.text)
    site = folder / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        site,
        folder,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return written, outputs, site


def test_the_backends_of_write_a_backend_do_what_it_says(tmp_path):
    written, outputs, site = installed("docs/write-a-backend.md", tmp_path)
    programs = [path for path in written if path.name in ("use.py", "functional.py", "closures.py")]
    assert [run(path, tmp_path, PYTHONPATH=str(site)) for path in programs] == outputs
    commands = [b.text.split() for b in blocks("docs/write-a-backend.md") if b.language == "console"]
    for command in commands:  # one for each way
        assert "keeps the contract" in run("-m", tmp_path, *command, "--jobs", "1", PYTHONPATH=str(site))
    assert len(commands) == 3


def test_write_a_backend_shows_code_of_the_backend_on_pytorch():
    shown = [b.text for b in blocks("docs/write-a-backend.md") if b.language == "python" and not b.file]
    files = (ROOT / "plugins/torch/src/backbay_torch").glob("*.py")
    code = "".join(path.read_text() for path in files)
    parts = [part for text in shown for part in re.split(r"^class .*\n|\n\n\n", text, flags=re.MULTILINE)]
    assert parts
    assert all(part in code for part in parts)


def test_the_kernel_of_conformance_is_found_wrong_by_its_bounds():
    wrong, within = [block.text for block in blocks("docs/conformance.md") if "rms_norm" in block.text][::3]
    names = {"__name__": "norm"}
    exec(wrong, names)
    with pytest.raises(AssertionError, match=r"rms_norm\(f32\["):
        names["check_kernel"](names["rms_norm"], "rms_norm")
    x = np.full((1, 3), 1e-3, np.float32)
    names |= {"x": x, "y": names["rms_norm"](x, eps=1e-6), "bound": bound}
    with pytest.raises(AssertionError):
        exec(within, names)


def test_the_program_of_contexts_prints_what_it_says(tmp_path):
    program, output = blocks("docs/contexts.md")
    (tmp_path / program.file).write_text(program.text)
    assert run(tmp_path / program.file, tmp_path) == output.text


@pytest.fixture(scope="module")
def add_a_model(tmp_path_factory) -> tuple[list[Path], list[str], Path]:
    return installed("docs/add-a-model.md", tmp_path_factory.mktemp("add-a-model"))


def test_the_model_of_add_a_model_does_what_it_says(add_a_model):
    written, outputs, site = add_a_model
    programs = [path for path in written if path.name in ("declare.py", "use.py")]
    assert [run(path, site.parent, PYTHONPATH=str(site)) for path in programs] == outputs


def test_the_family_of_add_a_model_reads_a_folder(add_a_model, tmp_path):
    """With weights in the classes' names; the shapes do not matter here."""
    *_, site = add_a_model
    config = {
        "architectures": ["Exaone4ForCausalLM"],
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "sliding_window": 16,
    }
    names = ("embed_tokens", "layers.0.self_attn.q_norm", "layers.0.post_attention_layernorm")
    header = {
        f"model.{name}.weight": {"dtype": "F32", "shape": [2], "data_offsets": [8 * n, 8 * n + 8]}
        for n, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    content = len(text).to_bytes(8, "little") + text + bytes(8 * len(names))
    (folder / "model.safetensors").write_bytes(content)
    program = (
        "from backbay.discovery import open_model; m = open_model('folder');"
        "print(*sorted(m.tensors), m.metadata['exaone4.attention.sliding_window'])"
    )
    expected = "blk.0.attn_q_norm.weight blk.0.post_attention_norm.weight token_embd.weight 16\n"
    assert run("-c", tmp_path, program, PYTHONPATH=str(site)) == expected


def test_the_walk_through_an_encoder_of_pictures_shows_its_file():
    shown = [b.text for b in blocks("CONTRIBUTING.md") if b.language == "python" and not b.file]
    family = ROOT / "apps/engine/src/backbay_engine/images/families/gemma3.py"
    assert len(shown) == 3
    assert all(text in family.read_text() for text in shown)


def test_scale_shows_parts_of_the_example_of_nginx():
    example = (ROOT / "examples/nginx.conf").read_text()
    [shown] = [block.text for block in blocks("docs/scale.md") if block.language == "nginx"]
    assert all(indent(part.strip(), "    ") in example for part in shown.split("\n\n"))


def test_links_lead_somewhere():
    links = [
        (document, target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    ]
    assert len(links) > len(DOCUMENTS)
    assert [(str(at), target) for at, target in links if not (at.parent / target).exists()] == []


def test_every_target_that_a_page_names_is_one_of_make():
    made = " ".join(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split()
    pages = [document.read_text() for document in DOCUMENTS if document.name != "CHANGELOG.md"]
    command = re.compile(r"(?:^|`)make ([a-z-]+)(?=`| +#| [A-Z]|$)", re.MULTILINE)
    named = {target for page in pages for target in command.findall(page)}
    assert {"demo", "test"} <= named
    assert named - set(made) == set()


def test_the_table_of_backends_in_the_readme_is_what_is_installed(capsys):
    shown = re.search(r"list --markdown` -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert main(["list", "--markdown"]) == 0
    assert shown is not None
    assert shown[1] == capsys.readouterr().out


@pytest.mark.thorough
def test_the_recording_is_what_its_commands_print():
    done = subprocess.run([sys.executable, ROOT / "lab/tools/recording.py", "--check"], check=False)
    assert done.returncode == 0, "run `make docs`"

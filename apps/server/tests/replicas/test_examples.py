"""The example files: what they say is what the code knows, and what the documents show."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from scripted_model import write_scripted_model

from backbay import OptionError
from backbay_server.catalogue import Entry
from backbay_server.replicas.arguments import Arguments, Scale, arguments_of
from backbay_server.replicas.deployments import app, deployment_name

ROOT = Path(__file__).parents[4]


def test_the_file_for_ray_serve_is_understood():
    yaml = pytest.importorskip("yaml")
    [application] = yaml.safe_load((ROOT / "examples/ray_serve.yaml").read_text())["applications"]
    assert application["import_path"] == "backbay_server.replicas:app"
    arguments = arguments_of(application["args"])
    assert arguments.replicas == Scale(2, 4, 10, 300)
    [model] = arguments.settings().models
    names = {deployment_name(Entry(Path(model).stem, Path(model))), "Ingress"}
    assert {deployment["name"] for deployment in application["deployments"]} == names


def test_the_names_of_deployments_are_plain():
    assert deployment_name(Entry("org/name:7b Q4_0", Path("x.gguf"))) == "Engine-org-name-7b-Q4_0"


@pytest.mark.fault(
    "two models would have deployments of one name", "nothing is deployed, and the error names both"
)
def test_models_whose_deployments_would_have_one_name_are_refused(tmp_path: Path):
    for name in ("a b", "a-b"):
        write_scripted_model(tmp_path / f"{name}.gguf")
    models = [str(tmp_path / "a b.gguf"), str(tmp_path / "a-b.gguf")]
    with pytest.raises(OptionError, match=r"'a b' and 'a-b' would both be the deployment Engine-a-b"):
        app({"models": models})


def test_the_document_names_all_arguments():
    document = (ROOT / "docs/scale.md").read_text()
    assert [name for name in Arguments.__struct_fields__ if f"`{name}`" not in document] == []


def test_the_document_shows_the_example_of_nginx():
    example = (ROOT / "examples/nginx.conf").read_text()
    shown = (ROOT / "docs/scale.md").read_text().partition("```nginx\n")[2].partition("```")[0]
    assert shown.count("server 127.0.0.1") == 2
    for part in shown.strip().split("\n\n"):
        assert part in dedent(
            "\n".join(line for line in example.splitlines() if line.startswith("    ") or not line)
        )

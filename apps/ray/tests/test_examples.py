"""The example file and the document: what they say is what the code knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_model import write_scripted_model

from backbay import OptionError
from backbay_ray.arguments import DeploymentArguments, ReplicaScale, check_arguments
from backbay_ray.deployments import app, deployment_name
from backbay_server.remote import CatalogueEntry

ROOT = Path(__file__).parents[3]


def test_the_file_for_ray_serve_is_understood():
    yaml = pytest.importorskip("yaml")
    [application] = yaml.safe_load((ROOT / "examples/ray_serve.yaml").read_text())["applications"]
    assert application["import_path"] == "backbay_ray:app"
    arguments = check_arguments(application["args"])
    assert arguments.replicas == ReplicaScale(2, 4, 10, 300)
    [model] = arguments.settings().models
    names = {deployment_name(CatalogueEntry(Path(model).stem, Path(model))), "Ingress"}
    assert {deployment["name"] for deployment in application["deployments"]} == names


def test_the_names_of_deployments_are_plain():
    assert deployment_name(CatalogueEntry("org/name:7b Q4_0", Path("x.gguf"))) == "Engine-org-name-7b-Q4_0"


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
    assert [name for name in DeploymentArguments.__struct_fields__ if f"`{name}`" not in document] == []

"""Arguments of the application for Ray Serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backbay import OptionError
from backbay_ray.arguments import ReplicaScale, check_arguments
from backbay_server import ServerSettings


def test_the_texts_of_a_command_line_are_taken():
    found = check_arguments(
        {"models": "a.gguf", "parallel": "8", "replicas": "2", "cpus": "1.5", "page": "false"}
    )
    assert (found.parallel, found.replicas, found.cpus, found.page) == (8, 2, 1.5, False)
    assert found.settings().models == ("a.gguf",)
    assert found.settings().threads == 1


def test_what_is_not_given_is_as_in_the_server():
    settings, alone = check_arguments({"models": ["a.gguf", "b.gguf"]}).settings(), ServerSettings()
    for name in ("parallel", "queue", "context", "max_body", "hosts", "origins", "page", "metrics"):
        assert getattr(settings, name) == getattr(alone, name)
    assert settings.max_loaded == 2


def test_a_range_of_replicas():
    found = check_arguments({"models": "a.gguf", "replicas": {"min": 1, "max": 4, "upscale_delay": 5}})
    assert found.replicas == ReplicaScale(1, 4, 5.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "models"),
        ({"models": "a", "paralel": 3}, "paralel"),
        ({"models": "a", "parallel": 0}, "parallel"),
        ({"models": "a", "queue": 0}, "queue"),
        ({"models": "a", "replicas": {"min": 3, "max": 2}}, "max is 2, and min is 3"),
        ({"models": "a", "replicas": {"min": 1}}, "max"),
        ({"models": "a", "cpus": "many"}, "cpus"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], told: str):
    with pytest.raises(OptionError, match=told):
        check_arguments(given)


def test_keys_are_those_of_a_file_of_each_machine(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    found = check_arguments({"models": "a", "api_key_file": str(file)})
    assert found.keys() == ("one", "two")
    assert found.settings().keys == ()

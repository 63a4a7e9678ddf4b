"""Paths of model files: what is no path is an error that says so."""

import os

import pytest

import backbay
from backbay import ModelFileError, OptionError


class Place(os.PathLike):
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


@pytest.mark.parametrize(
    "path", [5, b"model.gguf", "", 1.5, [], True, Place(""), Place(b"model.gguf"), Place(5)]
)
@pytest.mark.fault("the path of a model is a number, bytes, or empty", "OptionError with the value")
def test_a_path_is_a_text(path):
    with pytest.raises(OptionError, match="the path of a model file must be"):
        backbay.open(path, "cpu_ref")


@pytest.mark.parametrize("path", ["a\0b", ".", "x" * 5000, "\udcff", Place("nowhere.gguf")])
def test_a_path_that_leads_nowhere_is_an_error_of_the_file(path):
    with pytest.raises(ModelFileError, match="a readable file"):
        backbay.open(path, "cpu_ref")

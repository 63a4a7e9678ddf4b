"""Which models there are, and under which names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backbay import ModelFileError, OptionError
from backbay_server.catalogue import Catalogue
from backbay_server.catalogue import catalogue as catalogue_module
from backbay_server.errors import ModelNotFoundError


def gguf(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return str(path)


def names(catalogue: Catalogue) -> list[str]:
    return [each.name for each in catalogue.listed()]


def test_a_file_has_the_name_of_its_stem(tmp_path: Path) -> None:
    begun = int(time.time())
    catalogue = Catalogue([gguf(tmp_path / "tiny-f16.gguf"), gguf(tmp_path / "big-00001-of-00002.gguf")])
    assert names(catalogue) == ["tiny-f16", "big"]
    assert catalogue.find("big").path == tmp_path / "big-00001-of-00002.gguf"
    assert begun - 1 <= catalogue.find("big").created <= time.time()


def test_an_alias_stands_for_a_model_or_a_file(tmp_path: Path) -> None:
    tiny = gguf(tmp_path / "tiny.gguf")
    catalogue = Catalogue([tiny], aliases={"gpt": "tiny", "other": gguf(tmp_path / "deep" / "tiny.gguf")})
    assert names(catalogue) == ["tiny", "gpt", "other"]
    assert catalogue.find("gpt").path == Path(tiny)
    assert len(catalogue.named) == 2


def test_every_model_is_on_offer_on_each_further_backend(tmp_path: Path) -> None:
    tiny, folder = gguf(tmp_path / "tiny.gguf"), Path(gguf(tmp_path / "deep" / "big.gguf")).parent
    catalogue = Catalogue([tiny], [str(folder)], {"gpt": "tiny"}, {"tiny:sql": tiny}, ("onnx", "torch"))
    offered = names(catalogue)
    assert {"tiny", "tiny@onnx", "gpt@torch", "big@onnx", "tiny:sql", "tiny@onnx:sql"} <= set(offered)
    assert [catalogue.find(name).name for name in offered] == offered
    assert (
        catalogue.find("gpt@onnx").identity
        == catalogue.find("tiny@onnx:sql").identity
        == (Path(tiny), "onnx")
    )
    assert [each.identity for each in catalogue.named] == [(Path(tiny), at) for at in ("", "onnx", "torch")]
    for wrong in ("tiny@ggml", "tiny@onnx@torch", "@onnx", "tiny:sql@onnx"):
        with pytest.raises(ModelNotFoundError):
            catalogue.find(wrong)


def test_one_name_for_two_files_is_refused(tmp_path: Path) -> None:
    twice = [gguf(tmp_path / "a" / "tiny.gguf"), gguf(tmp_path / "b" / "tiny.gguf")]
    with pytest.raises(OptionError, match="the same name 'tiny'; name one only by --alias"):
        Catalogue(twice)
    with pytest.raises(OptionError, match="name of a model already"):
        Catalogue(twice[:1], aliases={"tiny": twice[1]})


def test_what_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no model"):
        Catalogue([str(tmp_path / "none.gguf")])
    with pytest.raises(ModelFileError, match="a readable folder"):
        Catalogue([], [str(tmp_path / "none")])


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    catalogue = Catalogue([gguf(tmp_path / "tiny.gguf")])
    with pytest.raises(ModelNotFoundError, match=r"'tinny' does not exist.*tiny") as error:
        catalogue.find("tinny")
    assert str(tmp_path) not in str(error.value)
    for path in (str(tmp_path / "tiny.gguf"), "../tiny", "hf:org/name", ""):
        with pytest.raises(ModelNotFoundError):
            catalogue.find(path)


def test_files_in_a_folder_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "FRESH", 0.0)
    gguf(tmp_path / "a.gguf")
    catalogue = Catalogue([], [str(tmp_path)])
    assert names(catalogue) == ["a"]
    gguf(tmp_path / "b.gguf")
    (tmp_path / "a.gguf").unlink()
    assert names(catalogue) == ["b"]


@pytest.mark.parametrize("name", ["a:" * 2000, "a@onnx" * 2000])
def test_names_without_end_are_unknown(name: str, tmp_path: Path) -> None:
    catalogue = Catalogue([gguf(tmp_path / "tiny.gguf")], further_backends=["onnx"])
    with pytest.raises(ModelNotFoundError) as error:
        catalogue.find(name)
    assert len(str(error.value)) < 1000

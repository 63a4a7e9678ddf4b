"""Vocabularies of Hugging Face's tokenizers, as the keys of model files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from backbay import ModelFileError

from ...json_files import read_object
from ..config_json import Keys, Settings
from . import kinds
from .tokens import TokenizerFile, special_keys

log = logging.getLogger(__name__)

NONE: Keys = {"tokenizer.ggml.model": "none"}
TOKENIZER, SENTENCEPIECE = "tokenizer.json", "tokenizer.model"


def vocabulary_keys(settings: Settings, architecture: str, count: int) -> Keys:
    """The keys of a folder's tokenizer, with `count` tokens; none if the folder has no tokenizer."""
    folder = settings.folder
    path = folder / TOKENIZER
    if not path.exists():
        if (folder / SENTENCEPIECE).exists():
            expected = f"{TOKENIZER}; make it with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            raise ModelFileError(folder, None, expected, f"{SENTENCEPIECE} only")
        log.warning("%s has no %s, so the model takes token ids only", folder, TOKENIZER)
        return NONE
    found = read_object(path)
    model = found.get("model")
    if not isinstance(model, dict) or not model.get("vocab") or "type" not in model:
        log.warning("%s has no vocabulary, so the model takes token ids only", path)
        return NONE
    read = _KINDS.get(str(model["type"]))
    if read is None:
        expected = f"a tokenizer of a type that is known: {', '.join(_KINDS)},"
        raise ModelFileError(path, None, expected, repr(model["type"])[:100])
    read_object(folder / "tokenizer_config.json", required=False)  # the gguf package reads it without a bound
    source = TokenizerFile(path, found, model, architecture, count)
    keys, types = read(source), settings.maybe_whole("type_vocab_size")
    if types is not None:
        keys["tokenizer.ggml.token_type_count"] = types
    return {**keys, **special_keys(source, settings)}


_KINDS: Mapping[str, Callable[[TokenizerFile], dict[str, Any]]] = {
    "BPE": kinds.byte_pair_keys,
    "Unigram": kinds.unigram_keys,
    "WordPiece": kinds.word_piece_keys,
}

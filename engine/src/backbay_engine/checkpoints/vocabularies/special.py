"""Special tokens and chat templates, by the rules of the gguf package."""

from __future__ import annotations

import logging
from typing import Any

from ..json_files import LARGEST, read_bytes, read_object
from ..settings import Settings
from .tokens import Source, is_id

NAMES = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # GGUF's spelling
TEMPLATE = "tokenizer.chat_template"
_PREFIX = "tokenizer.ggml."
_FILES = "chat_template.jinja", "chat_template.json", "generation_config.json"


def special_keys(source: Source, settings: Settings) -> dict[str, Any]:
    from gguf.vocab import SpecialVocab

    folder = source.path.parent
    for name in _FILES:
        if (folder / name).exists():
            read_bytes(folder / name)  # of bounded size
    for path in folder.glob("additional_chat_templates/*.jinja"):
        read_bytes(path)
    logger = logging.getLogger("gguf.vocab")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        found = SpecialVocab(folder, load_merges=False, n_vocab=source.count or None)
    except Exception as error:
        # The package trusts the files; whatever is wrong with them ends here.
        raise source.refuse(
            "files of a tokenizer that the gguf package understands", f"{type(error).__name__}: {error}"
        ) from error
    finally:
        logger.setLevel(level)
    ids = {name: id for name, id in found.special_token_ids.items() if is_id(id)}
    if "eos" not in ids:  # generation_config.json may name the token that ends an answer, or several
        ends = read_object(settings.folder / "generation_config.json", required=False).get("eos_token_id")
        first = ends[0] if isinstance(ends, list) and ends else ends
        ids |= {"eos": first} if is_id(first) else {}
    keys: dict[str, Any] = {f"{_PREFIX}{NAMES.get(name, name)}_token_id": id for name, id in ids.items()}
    adds = {name: value for name, value in found.add_special_token.items() if name in ("bos", "eos", "sep")}
    keys |= {f"{_PREFIX}add_{name}_token": bool(value) for name, value in adds.items()}
    return {**keys, **_templates(source, found.chat_template)}


def _templates(source: Source, found: object) -> dict[str, Any]:
    if isinstance(found, str):
        return {TEMPLATE: found}
    templates: dict[str, Any] = {}
    for each in found if isinstance(found, list) else ():
        name, text = (each.get("name"), each.get("template")) if isinstance(each, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str) or len(name) > 100 or len(text) > LARGEST:
            raise source.refuse("a name and a template in each chat template", repr(each)[:200])
        templates[TEMPLATE if name == "default" else f"{TEMPLATE}.{name}"] = text
    return templates

"""The file that holds an encoder: a projector, or the model's own file; and the family that it belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, final

from backbay import ModelFileError
from backbay.discovery import open_model
from backbay.gguf import Key, ModelFile, nearest, text

from ..encoders.contract import EncoderFamily
from ..errors import RequestError

Path = str | os.PathLike[str]


ARCHITECTURE, PROJECTOR = text("general.architecture"), "clip"
PROJECTORS: Mapping[str, str] = {
    "gemma3": "gemma3:Gemma3Family",
    "idefics3": "idefics3:Idefics3Family",
    "ldp": "llava:MobileVLMFamily",
    "ldpv2": "llava:MobileVLMFamily",
    "llama4": "llama4:Llama4Family",
    "minicpmv4_6": "minicpmv:MiniCPMV46Family",
    "mlp": "llava:LlavaFamily",
    "pixtral": "pixtral:PixtralFamily",
    "qwen2.5vl_merger": "qwen2:Qwen25VLFamily",
    "qwen2vl_merger": "qwen2:Qwen2VLFamily",
    "qwen3vl_merger": "qwen3:Qwen3VLFamily",
    "resampler": "minicpmv:MiniCPMVFamily",
}
"""Families by the type of a projector, each with its module."""
SOUND_PROJECTORS: Mapping[str, str] = {
    "qwen2a": "qwen2_audio:Qwen2AudioFamily",
    "ultravox": "ultravox:UltravoxFamily",
    "voxtral": "voxtral:VoxtralFamily",
}
ARCHITECTURES: Mapping[str, str] = {
    "gemma3": "gemma3:Gemma3Family",
    "llama4": "llama4:Llama4Family",
    "mistral3": "pixtral:PixtralFamily",
    "mllama": "mllama:MllamaFamily",
    "phi4mm": "phi4:Phi4VisionFamily",
    "qwen25vl": "qwen2:Qwen25VLFamily",
    "qwen35": "qwen3:Qwen3VLFamily",
    "qwen35moe": "qwen3:Qwen3VLFamily",
    "qwen3vl": "qwen3:Qwen3VLFamily",
    "qwen3vlmoe": "qwen3:Qwen3VLFamily",
}
"""Families by the architecture of a file that holds all."""
SOUND_ARCHITECTURES: Mapping[str, str] = {
    "phi4mm": "phi4:Phi4SoundFamily",
    "whisper": "whisper:WhisperFamily",
}


@final
@dataclass(frozen=True)
class EncoderKind:
    """Encoders of pictures, or of sound.

    mark           the beginning of names that only such an encoder's tensors have
    names          the beginnings of names of its tensors
    unused         those of tensors that are not needed
    keys           the keys of a projector's type
    projectors     families by this type
    architectures  families by the architecture of a file that holds all
    default        the type of a projector that states none
    """

    folder: str
    mark: str
    names: tuple[str, ...]
    unused: tuple[str, ...]
    keys: tuple[Key[str], ...]
    projectors: Mapping[str, str]
    architectures: Mapping[str, str]
    default: str = ""

    def has(self, name: str) -> bool:
        """Whether a tensor of this name belongs to the encoder."""
        return name.startswith(self.names) and not name.startswith(self.unused)

    def is_in(self, file: ModelFile) -> bool:
        return any(name.startswith(self.mark) for name in file.tensors)

    def family(self, file: ModelFile) -> type[Any]:
        """The class of the family of a file's encoder; ModelFileError names the families that are known."""
        known, key, default = self.architectures, ARCHITECTURE, ""
        if file.metadata.architecture == PROJECTOR:
            known, default = self.projectors, self.default
            key = next((key for key in self.keys if key.name in file.metadata), self.keys[-1])
        kind = key.of(file.metadata, default) if default else key.of(file.metadata)
        if kind not in known:
            expected = f"an encoder of a kind that is known: {', '.join(sorted(known))}"
            found = f"{kind!r}{nearest(kind, known)}"
            raise ModelFileError(file.path, file.metadata.offset(key.name), expected, found)
        module, _, name = known[kind].partition(":")
        family: type[Any] = getattr(import_module(f"..{self.folder}.families.{module}", __package__), name)
        return family


VISION: Final = EncoderKind(
    "images",
    "v.",
    ("v.", "mm.", "model.image_newline", "resampler."),
    ("mm.a.", "v.token_embd.", "resampler.pos_embed"),  # audio, copies of the text's embeddings, sines
    (text("vision.projector_type"), text("projector_type")),
    PROJECTORS,
    ARCHITECTURES,
    default="mlp",
)
SOUND: Final = EncoderKind(
    "sound",
    "a.",
    ("a.", "mm.a."),
    (),
    (text("audio.projector_type"), text("projector_type")),
    SOUND_PROJECTORS,
    SOUND_ARCHITECTURES,
)
KINDS: Final = VISION, SOUND


def encoder_files(path: Path, projector: Path | None = None) -> Iterator[ModelFile]:
    """The file of a model's encoder, open with the encoder's tensors only, once for each encoder that it holds.

    It is the projector's file, or the model's own, in Ollama's layout.
    """
    where = path if projector is None else projector
    with open_model(where, lambda name: any(kind.has(name) for kind in KINDS)) as file:
        kinds = kinds_of(file)
        if not kinds and projector is not None:
            expected = "a projector with an encoder of pictures or sound, tensors v.* or a.*,"
            found = f"none of them, and the architecture {file.metadata.architecture!r}"
            raise ModelFileError(file.path, None, expected, found)
    for kind in kinds:
        yield open_model(where, kind.has)


def kinds_of(file: ModelFile) -> list[EncoderKind]:
    """The kinds of the encoders that a file holds. A projector file, or one of an architecture whose sound is not known,
    with encoders of both is one of pictures.
    """
    found, name = [kind for kind in KINDS if kind.is_in(file)], file.metadata.architecture
    return [kind for kind in found if name in kind.architectures] or found[:1]


def text_file(path: Path) -> ModelFile:
    """A model's file, open without the tensors of encoders."""
    return open_model(path, lambda name: not name.startswith((*VISION.names, *SOUND.names)))


def encoder_families(
    path: Path, projector: Path | None = None, image_tokens: int | None = None
) -> Iterator[EncoderFamily[Any]]:
    """The families of a model's encoders, the first of which is limited to so many rows of a picture."""
    for number, file in enumerate(encoder_files(path, projector)):
        try:
            family = encoder_family(file, None if number else image_tokens)
        except BaseException:
            file.close()
            raise
        yield family


def encoder_family(file: ModelFile, image_tokens: int | None = None) -> EncoderFamily[Any]:
    """The family of the encoder in a file that holds one; ModelFileError names the families that are known."""
    kind = next(iter(kinds_of(file)), VISION)
    family = kind.family(file)
    if kind is VISION:
        seeing: EncoderFamily[Any] = family(file, image_tokens)
        return seeing
    if image_tokens is not None:
        raise RequestError(f"image_tokens={image_tokens} is for models that see; this one hears")
    hearing: EncoderFamily[Any] = family(file)
    return hearing

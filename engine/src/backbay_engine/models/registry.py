"""The registry of architectures: from the name in a file to a class."""

from __future__ import annotations

import inspect

from backbay import BackbayError, Backend, ModelFileError
from backbay.discovery import Declared, declared
from backbay.gguf import nearest, text
from backbay.internals import load_declared

from .contract import Model

GROUP = "backbay.models"
"""The entry-point group in which other packages declare models, under the name of the architecture."""

ARCHITECTURE = text("general.architecture")

_BUILT_IN = {
    "bert": "encoders.bert:Bert",
    "cohere2": "decoders.cohere2:Cohere2",
    "command-r": "decoders.cohere2:CommandR",
    "deepseek2": "mixtures.deepseek2:DeepSeek2",
    "ernie4_5": "mixtures.ernie:Ernie",
    "ernie4_5-moe": "mixtures.ernie:Ernie",
    "gemma-embedding": "gemma.gemma3:GemmaEmbedding",
    "gemma2": "gemma.gemma2:Gemma2",
    "gemma3": "gemma.gemma3:Gemma3",
    "gemma3n": "gemma.gemma3n:Gemma3n",
    "gemma4": "gemma.gemma4:Gemma4",
    "glm4": "decoders.glm4:Glm4",
    "glm4moe": "mixtures.glm4moe:Glm4Moe",
    "gpt-oss": "mixtures.gptoss:GptOss",
    "gpt2": "decoders.gpt2:Gpt2",
    "granite": "decoders.granite:Granite",
    "granitehybrid": "recurrent.granite_hybrid:GraniteHybrid",
    "granitemoe": "decoders.granite:Granite",
    "jina-bert-v2": "encoders.bert:JinaBert",
    "jina-bert-v3": "encoders.bert:NomicBert",
    "lfm2": "recurrent.lfm2:Lfm2",
    "lfm2moe": "recurrent.lfm2:Lfm2",
    "llama": "decoders.llama:Llama",
    "llama4": "mixtures.llama4:Llama4",
    "mamba": "recurrent.mamba:Mamba",
    "mamba2": "recurrent.mamba2:Mamba",
    "mistral3": "decoders.llama:Llama",
    "mllama": "decoders.mllama:Mllama",
    "modern-bert": "encoders.modern_bert:ModernBert",
    "nemotron_h": "recurrent.nemotron_h:NemotronH",
    "nemotron_h_moe": "recurrent.nemotron_h:NemotronH",
    "nomic-bert": "encoders.bert:NomicBert",
    "nomic-bert-moe": "encoders.bert:NomicBert",
    "olmo2": "decoders.olmo2:Olmo2",
    "phi3": "decoders.phi3:Phi3",
    "qwen2": "decoders.qwen:Qwen2",
    "qwen25vl": "decoders.qwen:Qwen2VL",
    "qwen2vl": "decoders.qwen:Qwen2VL",
    "qwen3": "decoders.qwen:Qwen3",
    "qwen35": "recurrent.qwen_next:Qwen35",
    "qwen35moe": "recurrent.qwen_next:Qwen35",
    "qwen3moe": "decoders.qwen:Qwen3",
    "qwen3vl": "decoders.qwen:Qwen3VL",
    "qwen3vlmoe": "decoders.qwen:Qwen3VL",
    "qwen3next": "recurrent.qwen_next:QwenNext",
    "rwkv7": "recurrent.rwkv7:Rwkv7",
    "smollm3": "decoders.smollm3:SmolLM3",
    "starcoder": "decoders.gpt2:Gpt2",
    "starcoder2": "decoders.starcoder2:StarCoder2",
    "t5": "encoder_decoder.t5:T5",
}


def architectures() -> dict[str, list[Declared]]:
    """The installed architectures by name, each with its declarations. Reads metadata, imports nothing."""
    from importlib.metadata import version

    ours = version("backbay-engine")
    package = __name__.rpartition(".")[0]
    found = {
        name: [Declared(name, f"{package}.architectures.{at}", "backbay-engine", ours)]
        for name, at in _BUILT_IN.items()
    }
    for name, points in declared(GROUP).items():
        found[name] = found.get(name, []) + points
    return found


def load_model(backend: Backend, context: int | None = None) -> Model:
    """The model of a backend's file, its tensors found and checked; the weights need not be loaded.

    Sequences may have up to `context` tokens; by default as many as the file says.
    """
    if backend.model is None:
        raise BackbayError("the backend has no model: open it with the path of a file")
    name, known = ARCHITECTURE.of(backend.config), architectures()
    if name not in known:
        expected = f"an architecture that is installed: {', '.join(sorted(known))}"
        offset = backend.config.offset(ARCHITECTURE.name)
        from .kinds import kind_of

        alike = kind_of(backend.model.tensors)
        kind = "" if alike is None else f"; its tensors are of the kind of {alike.example!r}: {alike.name}"
        raise ModelFileError(backend.model.path, offset, expected, f"{name!r}{nearest(name, known)}{kind}")
    model = _as_asked(find(name, known[name])(backend))
    if context is not None:
        model.fit(context)
    return model


def _as_asked(model: Model) -> Model:
    """The model, or its frame for whole texts if its file asks for vectors or scores."""
    from .decoder import Decoder
    from .encoder import TextDecoder

    head = model.text_head if isinstance(model, Decoder) else None
    return model if head is None else TextDecoder(model, head)  # type: ignore[arg-type]


def find(name: str, points: list[Declared]) -> type[Model]:
    """Import the class of an architecture; BackbayError if there are two, or if the class is broken."""
    found = load_declared(f"architecture {name!r}", points)
    what = f"architecture {name!r} of {points[0].origin}"
    if not isinstance(found, type) or not issubclass(found, Model):
        raise BackbayError(f"{what}: {found!r} is not a subclass of backbay_engine.plugin.Model")
    if inspect.isabstract(found):
        raise BackbayError(f"{what} does not implement {', '.join(sorted(found.__abstractmethods__))}")
    return found

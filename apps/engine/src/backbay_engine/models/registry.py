"""The registry of architectures: from the name in a file to a class, or to an architecture of the same kind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from backbay import BackbayError, Backend, ModelFileError
from backbay.discovery import PluginEntry, declared
from backbay.gguf import nearest, text
from backbay.internals import load_declared

from .contract import Model

GROUP = "backbay.models"

ARCHITECTURE = text("general.architecture")

_BUILT_IN = {
    "decoders.gemma3n:Gemma3n": "gemma3n",
    "decoders.gemma4:Gemma4": "gemma4",
    "decoders.gemma:Gemma2": "gemma2",
    "decoders.gemma:Gemma3": "gemma3",
    "decoders.gemma:GemmaEmbedding": "gemma-embedding",
    "decoders.layer_norm:Cohere2": "cohere2",
    "decoders.layer_norm:CommandR": "command-r",
    "decoders.layer_norm:Gpt2": "gpt2 starcoder",
    "decoders.layer_norm:StarCoder2": "starcoder2",
    "decoders.granite:Granite": "granite granitemoe",
    "decoders.granite:GraniteHybrid": "granitehybrid",
    "decoders.mixtures:Llama4": "llama4",
    "decoders.llama:Ernie": "ernie4_5 ernie4_5-moe",
    "decoders.llama:Glm4": "glm4",
    "decoders.mixtures:Glm4Moe": "glm4moe",
    "decoders.llama:Llama": "llama mistral3",
    "decoders.llama:Olmo2": "olmo2",
    "decoders.llama:Phi3": "phi3 phi4mm",
    "decoders.llama:SmolLM3": "smollm3",
    "decoders.mixtures:DeepSeek2": "deepseek2",
    "decoders.mixtures:GptOss": "gpt-oss",
    "decoders.mllama:Mllama": "mllama",
    "decoders.qwen:Qwen2": "qwen2",
    "decoders.qwen:Qwen2VL": "qwen25vl qwen2vl",
    "decoders.qwen:Qwen3": "qwen3 qwen3moe",
    "decoders.qwen:Qwen3VL": "qwen3vl qwen3vlmoe",
    "decoders.whisper:Whisper": "whisper",
    "encoders.bert:Bert": "bert",
    "encoders.bert:JinaBert": "jina-bert-v2",
    "encoders.bert:ModernBert": "modern-bert",
    "encoders.bert:NomicBert": "jina-bert-v3 nomic-bert nomic-bert-moe",
    "encoders.t5:T5": "t5",
    "recurrent.hybrids:Lfm2": "lfm2 lfm2moe",
    "recurrent.mamba:Mamba": "mamba",
    "recurrent.mamba:Mamba2": "mamba2",
    "recurrent.mamba:NemotronH": "nemotron_h nemotron_h_moe",
    "recurrent.hybrids:Qwen35": "qwen35 qwen35moe",
    "recurrent.hybrids:QwenNext": "qwen3next",
    "recurrent.rwkv7:Rwkv7": "rwkv7",
}
"""The architectures of each class."""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model, with an architecture to start from; a file is of it if some tensor has each of the parts, and
    none has an absent one.
    """

    name: str
    example: str
    tensors: tuple[str, ...]
    absent: tuple[str, ...] = ()


KINDS: Final = (
    ModelKind("a time-mixing recurrence", "rwkv7", ("time_mix_",)),
    ModelKind("a gated delta rule", "qwen3next", ("ssm_(ba|beta|alpha)",)),
    ModelKind("Mamba layers between layers with attention", "granitehybrid", ("ssm_in", "attn_q")),
    ModelKind("Mamba layers", "mamba2", ("ssm_in",)),
    ModelKind("short convolutions", "lfm2", ("shortconv",)),
    ModelKind("an encoder and a decoder", "t5", ("enc.blk", "dec.blk")),
    ModelKind("latent attention", "deepseek2", ("attn_kv_a_mqa",)),
    ModelKind("an encoder of texts", "bert", ("attn_output_norm", "layer_output_norm")),
    ModelKind(
        "an encoder of texts with norms before each branch", "modern-bert", ("token_embd_norm", "ffn_norm")
    ),
    ModelKind("experts with a shared expert", "glm4moe", ("ffn_gate_inp", "shexp")),
    ModelKind("experts with biases", "gpt-oss", ("ffn_gate_inp", "ffn_down_exps.bias")),
    ModelKind("experts", "qwen3moe", ("ffn_gate_inp",)),
    ModelKind("norms only after each branch", "olmo2", ("post_ffw_norm",), ("attn_norm",)),
    ModelKind("norms before and after each branch", "gemma2", ("post_ffw_norm",)),
    ModelKind("learned positions", "gpt2", ("position_embd",)),
    ModelKind(
        "parallel attention and feed-forward",
        "command-r",
        ("attn_norm",),
        ("ffn_norm", "post_attention_norm"),
    ),
    ModelKind("layer norms with biases", "starcoder2", ("attn_norm.bias",)),
    ModelKind("joint weights of gate and up", "phi3", ("ffn_up",), ("ffn_gate",)),
    ModelKind("norms of queries and keys", "qwen3", ("attn_q_norm",)),
    ModelKind("a plain decoder", "llama", ("attn_norm", "ffn_norm")),
)


def architectures() -> dict[str, list[PluginEntry]]:
    """The installed architectures by name, each with its declarations. Reads metadata, imports nothing."""
    from importlib.metadata import version

    ours = version("backbay-engine")
    package = __name__.rpartition(".")[0]
    found = {
        name: [PluginEntry(name, f"{package}.architectures.{at}", "backbay-engine", ours)]
        for at, names in _BUILT_IN.items()
        for name in names.split()
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
        alike = model_kind(backend.model.tensors)
        kind = "" if alike is None else f"; its tensors are of the kind of {alike.example!r}: {alike.name}"
        raise ModelFileError(backend.model.path, offset, expected, f"{name!r}{nearest(name, known)}{kind}")
    model = find_architecture(name, known[name])(backend)
    from .bases import Decoder, EmbeddingDecoder

    if isinstance(model, Decoder) and model.text_head is not None:  # the file asks for vectors or scores
        model = EmbeddingDecoder(model, model.text_head)
    if context is not None:
        model.fit(context)
    return model


def find_architecture(name: str, points: list[PluginEntry]) -> type[Model]:
    """Import the class of an architecture; BackbayError if there are two, or if the class is broken."""
    found = load_declared("backbay_model", f"architecture {name!r}", points)
    what = f"architecture {name!r} of {points[0].origin}"
    if not isinstance(found, type) or not issubclass(found, Model):
        raise BackbayError(f"{what}: {found!r} is not a subclass of backbay_engine.plugin.Model")
    if inspect.isabstract(found):
        raise BackbayError(f"{what} does not implement {', '.join(sorted(found.__abstractmethods__))}")
    return found


def model_kind(tensors: Collection[str]) -> ModelKind | None:
    """The first kind that a file's tensors fit."""
    names = "\n".join(tensors)

    def has(part: str) -> bool:
        return re.search(rf"(^|[._]){part}", names, re.MULTILINE) is not None

    fitting = (k for k in KINDS if all(map(has, k.tensors)) and not any(map(has, k.absent)))
    return next(fitting, None)

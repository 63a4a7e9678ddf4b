"""The configuration of a model of Hugging Face's transformers, and the keys of GGUF that every model takes from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from backbay import ModelFileError
from backbay.gguf import nearest

from ..json_files import read_object

CONFIG = "config.json"
LARGEST = (1 << 31) - 1
MOST_BLOCKS, WIDEST_HEAD = 1 << 14, 1 << 16  # lists are made of so many
Keys: TypeAlias = dict[str, Any]
"""Keys without the architecture in front, and values; None for a key that the model must not have."""
T = TypeVar("T")
D = TypeVar("D")
_REQUIRED: Any = ...

HIDDEN = "hidden_size", "n_embd", "d_model", "dim"
HEADS = "num_attention_heads", "n_head", "n_heads", "num_heads"
KV_HEADS = "num_key_value_heads", "n_kv_heads", "n_head_kv"
BLOCKS = "num_hidden_layers", "n_layers", "n_layer", "num_layers"
CONTEXT = "max_position_embeddings", "n_ctx", "n_positions", "max_sequence_length", "model_max_length"
INNER = (
    *("prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size"),
    *("n_inner", "hidden_dim"),
)


class SignedNumber(int):
    """A number that a model file has as i32, as its readers ask for; others that are not below 0 are u32."""


@dataclass(frozen=True)
class Settings:
    """The values of a checkpoint's config.json by name; of several names, the first that has a value counts."""

    folder: Path
    values: dict[str, Any]
    architecture: str  # the class of transformers

    @property
    def name(self) -> str:
        """The folder's name; in Hugging Face's cache, the repository's, as the folder has the name of a commit."""
        whole = self.folder.resolve()
        if whole.parent.name == "snapshots":
            return whole.parents[1].name.rpartition("--")[2]
        return whole.name

    @property
    def path(self) -> Path:
        return self.folder / CONFIG

    def whole(self, *names: str, default: int = _REQUIRED) -> int:
        return self._of("a whole number", _as_whole, names, default)

    def maybe_whole(self, *names: str) -> int | None:
        return self._of("a whole number", _as_whole, names, None)

    def whole_or_wholes(self, *names: str) -> int | list[int] | None:
        """A number, or a list with one for each block, which is a number if all are equal."""
        name = self._name_in_use(names)
        if not isinstance(self.values.get(name), list):
            return self.maybe_whole(*names)
        found = self.wholes(name)
        return found[0] if found and set(found) == {found[0]} else found

    def number(self, *names: str, default: float = _REQUIRED) -> float:
        return self._of("a finite number", _as_number, names, default)

    def maybe_number(self, *names: str) -> float | None:
        return self._of("a finite number", _as_number, names, None)

    def flag(self, name: str, default: bool = False) -> bool:
        return self._of("true or false", _as_flag, (name,), default)

    def text(self, *names: str, default: str = "") -> str:
        return self._of("a text", _as_text, names, default)

    def wholes(self, name: str) -> list[int]:
        """A list of whole numbers; empty without the name."""
        return self._list(name, "a list of whole numbers", _as_whole)

    def numbers(self, name: str) -> list[float]:
        return self._list(name, "a list of finite numbers", _as_number)

    def texts(self, name: str) -> list[str]:
        return self._list(name, "a list of texts", _as_text)

    def section(self, name: str, defaults: Mapping[str, Any] = MappingProxyType({})) -> Settings:
        """The object of this name, and the defaults of what it does not state; empty without the name."""
        found = self.values.get(name)
        if found is not None and not isinstance(found, dict):
            raise self.refuse(name, "an object")
        return Settings(self.folder, found or {}, self.architecture).over(defaults)

    def over(self, defaults: Mapping[str, Any]) -> Settings:
        """With defaults for what has no value."""
        stated = {name: value for name, value in self.values.items() if value is not None}
        return Settings(self.folder, {**self.values, **defaults, **stated}, self.architecture)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def refuse(self, name: str, expected: str) -> ModelFileError:
        found = repr(self.values[name])[:200] if name in self.values else f"none{nearest(name, self.values)}"
        return ModelFileError(self.path, None, f"{expected} in {name!r}", found)

    # -- what many models share --------------------------------------------------------------------------

    @property
    def width(self) -> int:
        return self.whole(*HIDDEN)

    @property
    def heads(self) -> int:
        return self._above_zero(*HEADS)

    @property
    def kv_heads(self) -> int:
        return self._above_zero(*KV_HEADS) if any(name in self for name in KV_HEADS) else self.heads

    @property
    def head(self) -> int:
        """The width of a head."""
        found = self._above_zero("head_dim") if "head_dim" in self else self.width // self.heads
        if found > WIDEST_HEAD:
            raise self.refuse("head_dim", f"a number up to {WIDEST_HEAD}")
        return found

    @property
    def blocks(self) -> int:
        found = self.whole(*BLOCKS)
        if not 0 <= found <= MOST_BLOCKS:
            raise self.refuse(self._name_in_use(BLOCKS), f"a number from 0 to {MOST_BLOCKS}")
        return found

    @property
    def rope(self) -> Settings:
        """The parameters of positions, by their names of today; those of blocks without windows, if there are two kinds."""
        own = "rope_parameters" if "rope_parameters" in self else "rope_scaling"
        found = self.section(own)
        if "full_attention" in found:
            found = found.section("full_attention")
        values = dict(found.values)
        if "type" in values:
            values.setdefault("rope_type", values["type"])
        for name, others in _ROPE.items():
            given = next((self.values[other] for other in others if other in self), None)
            if given is not None:
                values.setdefault(name, given)
        return Settings(self.folder, values, self.architecture)

    def windows(self) -> list[bool]:
        """Which blocks have a window, by `layer_types`; empty without it."""
        return [kind == "sliding_attention" for kind in self.texts("layer_types")]

    def _above_zero(self, *names: str) -> int:
        found = self.whole(*names)
        if found < 1:
            raise self.refuse(self._name_in_use(names), "a number above 0")
        return found

    def _name_in_use(self, names: Sequence[str]) -> str:
        """The first of these names that has a value; the first of all if none has."""
        return next((name for name in names if name in self), names[0])

    def _of(
        self, expected: str, convert: Callable[[Any], T | None], names: Sequence[str], default: D
    ) -> T | D:
        name = self._name_in_use(names)
        if name not in self and default is not _REQUIRED:
            return default
        found = convert(self.values.get(name))
        if found is None:
            raise self.refuse(name, expected)
        return found

    def _list(self, name: str, expected: str, convert: Callable[[Any], T | None]) -> list[T]:
        values = self.values.get(name)
        if values is None:
            return []
        found = [convert(value) for value in values] if isinstance(values, list) else [None]
        if any(value is None for value in found):
            raise self.refuse(name, expected)
        return [value for value in found if value is not None]


_ROPE = {
    "rope_theta": ("global_rope_theta", "rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rope_pct", "rotary_pct"),
    "original_max_position_embeddings": ("original_max_position_embeddings",),
}
_INNER_CONFIGS = "text_config", "llm_config", "language_config"


def read_settings(folder: Path) -> Settings:
    """The configuration of a folder; that of the text, if the model has others beside it."""
    values = read_object(folder / CONFIG)
    names = values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        expected = "the class of the model in 'architectures'"
        raise ModelFileError(folder / CONFIG, None, expected, repr(names)[:200])
    for name in _INNER_CONFIGS:
        if isinstance(values.get(name), dict):
            values = values | values[name]
    return Settings(folder, values, names[0])


def usual_keys(settings: Settings) -> Keys:
    """The keys that every model may have, from the values that its configuration has."""
    whole, number = settings.maybe_whole, settings.maybe_number
    keys: Keys = {
        "block_count": settings.blocks,
        "context_length": whole(*CONTEXT),
        "embedding_length": whole(*HIDDEN),
        "feed_forward_length": settings.whole_or_wholes(*INNER),
        "attention.head_count": whole(*HEADS),
        "attention.head_count_kv": whole(*KV_HEADS),
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps", "norm_eps"),
        "attention.layer_norm_epsilon": number("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        "attention.key_length": whole("head_dim"),
        "attention.value_length": whole("head_dim"),
        "expert_count": whole("num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": whole("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
        "expert_group_count": whole("n_group"),
        "expert_group_used_count": whole("topk_group"),
        "vocab_size": whole("vocab_size"),
    }
    return {**keys, **_rope_keys(settings), **_routing(settings)}


def _rope_keys(settings: Settings) -> Keys:
    rope = settings.rope
    keys: Keys = {"rope.freq_base": rope.maybe_number("rope_theta")}
    parameters = settings.section("rope_parameters")
    behind = parameters.section("sliding_attention").maybe_number("rope_theta")
    keys["rope.freq_base_swa"] = behind or settings.maybe_number("local_rope_theta", "rope_local_base_freq")
    sections = rope.wholes("mrope_section")
    if sections:
        keys["rope.dimension_sections"] = (sections + [0] * 4)[:4]
    kind = rope.text("rope_type")
    if kind in ("linear", "yarn") and "factor" in rope:
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": rope.number("factor")}
    if kind == "yarn":
        keys |= {
            "rope.scaling.original_context_length": rope.whole("original_max_position_embeddings"),
            "rope.scaling.yarn_ext_factor": rope.maybe_number("extrapolation_factor"),
            "rope.scaling.yarn_attn_factor": rope.maybe_number("attention_factor", "attn_factor"),
            "rope.scaling.yarn_beta_fast": rope.maybe_number("beta_fast"),
            "rope.scaling.yarn_beta_slow": rope.maybe_number("beta_slow"),
        }
    if kind in ("su", "longrope"):
        keys["rope.scaling.type"] = "longrope"
    if kind not in ("", "default", "linear", "yarn", "su", "longrope", "llama3", "proportional"):
        raise rope.refuse("rope_type", "a known way to extend the context: linear, yarn, longrope or llama3")
    return keys


def _routing(settings: Settings) -> Keys:
    names = "score_function", "scoring_func", "score_func", "moe_router_activation_func"
    kind = settings.text(*names)
    if not kind:
        return {}
    if kind not in ("softmax", "sigmoid"):
        raise settings.refuse(next(name for name in names if name in settings), "softmax or sigmoid")
    return {"expert_gating_func": 2 if kind == "sigmoid" else 1}


def _as_whole(value: Any) -> int | None:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and -LARGEST <= number <= LARGEST:
        return number
    return None


def _as_flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if isfinite(found) else None

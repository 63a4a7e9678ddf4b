"""Small models that see, with random weights: a family each, in the layouts that users have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from small_llama import SPECIAL as PLAIN
from small_llama import add_vocabulary

KINDS = (
    "gemma3",
    "llava",
    "qwen25vl",
    "mllama",
    "qwen3vl",
    "idefics3",
    "mistral3",
    "ldp",
    "minicpmv",
    "llama4",
    "minicpm46",
)
OTHER_LAYOUTS = ("gemma3 in one file", "qwen2vl")
SINGLE = ("qwen25vl", "mllama", "qwen3vl")
MARKS = [
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<image>", "<|image|>"),
    *("<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    *("<fake_token_around_image>", "<global-img>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<unk>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
    *("<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|patch|>"),
]
SPECIAL = [*PLAIN, *MARKS]
WORDS = 257 + len(SPECIAL)
ID = {word: 257 + n for n, word in enumerate(SPECIAL)}
MARK = {
    "gemma3": "<start_of_image>",
    "llava": "<image>",
    "qwen25vl": "<|image_pad|>",
    "qwen2vl": "<|image_pad|>",
    "qwen3vl": "<|image_pad|>",
    "mllama": "<|image|>",
    "idefics3": "<image>",
    "mistral3": "[IMG]",
    "ldp": "<image>",
    "minicpmv": "(<image>./</image>)",
    "llama4": "<|image|>",
    "minicpm46": "<|image_pad|>",
}
PROJECTORS = {
    "llava": "mlp",
    "qwen2vl": "qwen2.5vl_merger",
    "mistral3": "pixtral",
    "minicpmv": "resampler",
    "minicpm46": "minicpmv4_6",
}
TEXTS = {
    "llava": "llama",
    "idefics3": "llama",
    "ldp": "llama",
    "minicpmv": "llama",
    "minicpm46": "qwen35",
}  # architectures, where they are not the kind's name
BLOCKS = {"mllama": 4, "llama4": 4}  # of the text, where there are not three
WIDTH, HEADS, KV_HEADS, HIDDEN = 32, 4, 2, 48
EXPERTS, EXPERT_HIDDEN = 4, 16
SEES, EYES, EYE_HIDDEN, SIDE, PATCH = (
    16,
    2,
    24,
    28,
    7,
)  # the encoder's width, heads and hidden width; its grid is 4 x 4
CONTEXT = 512

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def template(kind: str) -> str:
    """A template that knows pictures, in the way of the family's own."""
    mark = MARK[kind]
    shown = f"<|vision_start|>{mark}<|vision_end|>" if kind.startswith("qwen") else mark
    return (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
        + shown
        + "{% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_small_vision(folder: Path, kind: str, *, chat: str | None = None) -> tuple[Path, Path | None]:
    """Write a model and, if its kind has one, its projector's file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng((*KINDS, *OTHER_LAYOUTS).index(kind))
    model, projector = folder / f"{kind}.gguf", folder / f"{kind}-mmproj.gguf"
    kind, single = kind.removesuffix(" in one file"), kind.endswith(" in one file")
    text = gguf.GGUFWriter(model, TEXTS.get(kind, kind))
    _write_text_keys(text, kind)
    add_vocabulary(text, SPECIAL, template(kind) if chat is None else chat)
    tensors = [*_text_tensors(kind)]
    if single:
        text.add_uint32("gemma3.mm.tokens_per_image", 4)
    if single or kind in SINGLE:
        _write_keys(text, f"{kind}.vision.", VISION_KEYS[kind])
        _finish(text, rng, [*tensors, *VISION_TENSORS[kind]()])
        return model, None
    _finish(text, rng, tensors)
    eye = gguf.GGUFWriter(projector, "clip")
    eye.add_bool("clip.has_vision_encoder", True)
    eye.add_string("clip.projector_type", PROJECTORS.get(kind, kind))
    eye.add_bool("clip.use_gelu", kind in ("gemma3", "idefics3", "minicpmv", "minicpm46"))
    eye.add_bool("clip.use_silu", kind in ("qwen2vl", "mistral3"))
    _write_keys(eye, "clip.vision.", VISION_KEYS[kind])
    _finish(eye, rng, [*VISION_TENSORS[kind]()])
    return model, projector


def _write_text_keys(writer: gguf.GGUFWriter, kind: str) -> None:
    writer.add_block_count(BLOCKS.get(kind, 3))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if kind == "gemma3":
        writer.add_sliding_window(8)
        writer.add_array("gemma3.attention.sliding_window_pattern", [True, False, True])
    if kind == "qwen25vl":
        writer.add_array("qwen25vl.rope.mrope_section", [2, 1, 1])
    if kind == "qwen2vl":
        writer.add_array("qwen2vl.rope.dimension_sections", [2, 1, 1, 0])
    if kind == "qwen3vl":
        writer.add_array("qwen3vl.rope.dimension_sections", [3, 0, 1, 0])
    if kind == "llama4":
        writer.add_uint32("llama4.attention.chunk_size", 24)
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(1)
        writer.add_expert_feed_forward_length(EXPERT_HIDDEN)
        writer.add_interleave_moe_layer_step(2)
    if kind == "minicpm46":
        _write_keys(writer, "qwen35.", RECURRENT)
    if kind == "mllama":
        writer.add_array("mllama.attention.cross_attention_layers", [1, 3])


def _write_keys(writer: gguf.GGUFWriter, prefix: str, keys: dict[str, Any]) -> None:
    for name, value in keys.items():
        if isinstance(value, list):
            writer.add_array(prefix + name, value)
        elif isinstance(value, float):
            writer.add_float32(prefix + name, value)
        else:
            writer.add_uint32(prefix + name, value)


def _finish(
    writer: gguf.GGUFWriter, rng: np.random.Generator, tensors: list[tuple[str, tuple[int, ...]]]
) -> None:
    for name, shape in tensors:
        data = rng.standard_normal(shape).astype(np.float32)
        if "norm" in name or ".ln" in name or name.endswith("_ln.weight"):
            data = (1 + 0.1 * data if name.endswith("weight") else 0.1 * data).astype(np.float32)
        elif name.endswith("ssm_a"):
            data = -np.abs(data)  # a decay
        elif len(shape) > 1:
            data *= np.float32(1.5 / np.sqrt(np.prod(shape[1:])))
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# -- text ------------------------------------------------------------------------------------------------


def _text_tensors(kind: str) -> Shapes:
    head = WIDTH // HEADS
    yield "token_embd.weight", (WORDS + 8 * (kind == "mllama"), WIDTH)
    for layer in range(BLOCKS.get(kind, 3)):
        block = f"blk.{layer}."
        yield block + "attn_norm.weight", (WIDTH,)
        recurs = kind == "minicpm46" and layer != 1
        yield block + ("post_attention_norm" if kind == "minicpm46" else "ffn_norm") + ".weight", (WIDTH,)
        if kind == "llama4" and layer % 2 == 1:
            yield from _experts(block)
        else:
            for name in ("gate", "up"):
                yield block + f"ffn_{name}.weight", (HIDDEN, WIDTH)
            yield block + "ffn_down.weight", (WIDTH, HIDDEN)
        if recurs:
            yield from ((block + name, shape) for name, shape in DELTA_RULE.items())
            continue
        crosses = kind == "mllama" and layer % 2 == 1
        gated = kind == "minicpm46"  # a query has a gate beside it
        for part, rows in (("q", (1 + gated) * HEADS * head), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            name = f"cross_attn_{part}_proj" if crosses else f"attn_{part}"
            yield block + f"{name}.weight", (rows, WIDTH)
            if kind in ("qwen25vl", "qwen2vl"):
                yield block + f"{name}.bias", (rows,)
        yield block + ("cross_attn_o_proj" if crosses else "attn_output") + ".weight", (WIDTH, WIDTH)
        if crosses:
            yield from ((block + f"cross_attn_{part}_norm.weight", (head,)) for part in "qk")
            yield from ((block + f"cross_attn_{part}_gate", (1,)) for part in ("attn", "mlp"))
        if kind in ("gemma3", "qwen3vl", "minicpm46"):
            yield from ((block + f"attn_{part}_norm.weight", (head,)) for part in "qk")
        if kind == "gemma3":
            yield from ((block + f"post_{part}_norm.weight", (WIDTH,)) for part in ("attention", "ffw"))
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (WORDS, WIDTH)


RECURRENT = {
    "full_attention_interval": 2,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": WIDTH,
    "ssm.state_size": 8,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_CHANNELS = WIDTH + 2 * 2 * 8
DELTA_RULE = {
    "attn_qkv.weight": (_CHANNELS, WIDTH),
    "attn_gate.weight": (WIDTH, WIDTH),
    "ssm_conv1d.weight": (_CHANNELS, 4),
    "ssm_dt.bias": (4,),
    "ssm_a": (4,),
    "ssm_alpha.weight": (4, WIDTH),
    "ssm_beta.weight": (4, WIDTH),
    "ssm_norm.weight": (WIDTH // 4,),
    "ssm_out.weight": (WIDTH, WIDTH),
}


def _experts(block: str) -> Shapes:
    yield block + "ffn_gate_inp.weight", (EXPERTS, WIDTH)
    for name in ("gate", "up"):
        yield block + f"ffn_{name}_exps.weight", (EXPERTS, EXPERT_HIDDEN, WIDTH)
        yield block + f"ffn_{name}_shexp.weight", (EXPERT_HIDDEN, WIDTH)
    yield block + "ffn_down_exps.weight", (EXPERTS, WIDTH, EXPERT_HIDDEN)
    yield block + "ffn_down_shexp.weight", (WIDTH, EXPERT_HIDDEN)


# -- encoders --------------------------------------------------------------------------------------------

_SIZES = {
    "image_size": SIDE,
    "patch_size": PATCH,
    "embedding_length": SEES,
    "feed_forward_length": EYE_HIDDEN,
    "block_count": 2,
    "attention.head_count": EYES,
    "attention.layer_norm_epsilon": 1e-6,
}
_COLOURS = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
VISION_KEYS: dict[str, dict[str, Any]] = {
    "gemma3": {**_SIZES, **_COLOURS, "projector.scale_factor": 2},
    "llava": {**_SIZES, **_COLOURS},
    "qwen25vl": {
        "block_count": 2,
        "embedding_length": SEES,
        "attention.head_count": EYES,
        "num_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "spatial_patch_size": PATCH,
        "window_size": 4 * PATCH,
        "attention.layer_norm_epsilon": 1e-6,
        "rope.freq_base": 1e4,
        "fullatt_block_indexes": [1],
        "temporal_patch_size": 2,
    },
    "qwen2vl": {**_SIZES, **_COLOURS, "n_wa_pattern": 2},
    "qwen3vl": {
        **{
            name: value for name, value in _SIZES.items() if name not in ("image_size", "feed_forward_length")
        },
        **_COLOURS,
        "num_channels": 3,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "rope.freq_base": 1e4,
        "deepstack_visual_indexes": [0, 1],
        "shortest_edge": 4 * (2 * PATCH) ** 2,
        "longest_edge": 4096 * (2 * PATCH) ** 2,
    },
    "idefics3": {**_SIZES, **_COLOURS, "projector.scale_factor": 4, "preproc_image_size": 2 * SIDE},
    "ldp": {**_SIZES, **_COLOURS},
    "minicpmv": {**_SIZES, **_COLOURS},
    "minicpm46": {**_SIZES, **_COLOURS, "projector.scale_factor": 4, "wa_layer_indexes": [0]},
    "mistral3": {**_SIZES, **_COLOURS, "image_size": 2 * SIDE, "spatial_merge_size": 2},
    "llama4": {**_SIZES, **_COLOURS, "projector.scale_factor": 2},
    "mllama": {
        **{name: value for name, value in _SIZES.items() if name != "image_size"},
        "image_size": SIDE,
        "num_channels": 3,
        "global.block_count": 1,
        "intermediate_layers_indices": [0],
        "max_num_tiles": 4,
    },
}


def _blocks(prefix: str, count: int, names: dict[str, tuple[int, ...]]) -> Shapes:
    for n in range(count):
        for name, shape in names.items():
            yield f"{prefix}{n}.{name}", shape


def _biased(**shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {
        key: value
        for name, shape in shapes.items()
        for key, value in ((f"{name}.weight", shape), (f"{name}.bias", shape[:1]))
    }


_ATTENTION = {f"attn_{part}": (SEES, SEES) for part in ("q", "k", "v", "out")}


def _clip() -> Shapes:
    yield "v.patch_embd.weight", (SEES, 3, PATCH, PATCH)
    yield from _blocks(
        "v.blk.",
        2,
        _biased(
            ln1=(SEES,), ln2=(SEES,), ffn_up=(EYE_HIDDEN, SEES), ffn_down=(SEES, EYE_HIDDEN), **_ATTENTION
        ),
    )


def _siglip() -> Shapes:
    yield from _clip()
    yield "v.patch_embd.bias", (SEES,)
    yield "v.position_embd.weight", ((SIDE // PATCH) ** 2, SEES)
    yield from _biased(**{"v.post_ln": (SEES,)}).items()


def _gemma3() -> Shapes:
    yield from _siglip()
    yield "mm.soft_emb_norm.weight", (SEES,)
    yield "mm.input_projection.weight", (SEES, WIDTH)


def _mistral3() -> Shapes:
    yield "v.patch_embd.weight", (SEES, 3, PATCH, PATCH)
    yield "v.pre_ln.weight", (SEES,)
    forward = {"ffn_gate": (EYE_HIDDEN, SEES), "ffn_up": (EYE_HIDDEN, SEES), "ffn_down": (SEES, EYE_HIDDEN)}
    matrices = {f"{name}.weight": shape for name, shape in {**_ATTENTION, **forward}.items()}
    yield from _blocks("v.blk.", 2, {"ln1.weight": (SEES,), "ln2.weight": (SEES,), **matrices})
    yield "mm.input_norm.weight", (SEES,)
    yield "mm.patch_merger.weight", (SEES, 4 * SEES)
    yield "mm.1.weight", (WIDTH, SEES)
    yield "mm.2.weight", (WIDTH, WIDTH)


def _minicpmv() -> Shapes:
    yield from _siglip()
    yield "resampler.query", (2, WIDTH)
    yield "resampler.kv.weight", (WIDTH, SEES)
    norms = {f"ln_{name}": (WIDTH,) for name in ("q", "kv", "post")}
    matrices = {f"attn.{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    yield from _biased(
        **{f"resampler.{name}": shape for name, shape in {**norms, **matrices}.items()}
    ).items()
    yield "resampler.proj.weight", (WIDTH, WIDTH)


def _minicpm46() -> Shapes:
    yield from _siglip()
    inner = {
        "ds_ln": (4 * SEES,),
        "ds_ffn_up": (4 * EYE_HIDDEN, 4 * SEES),
        "ds_ffn_down": (SEES, 4 * EYE_HIDDEN),
    }
    parts = {"ln1": (SEES,), **_ATTENTION, **inner}
    yield from _biased(**{f"v.vit_merger.{name}": shape for name, shape in parts.items()}).items()
    whole = 4 * SEES
    yield from _biased(
        **{"mm.input_norm": (whole,), "mm.up": (whole, whole), "mm.down": (WIDTH, whole)}
    ).items()


def _idefics3() -> Shapes:
    yield from _siglip()
    yield "mm.model.fc.weight", (WIDTH, 16 * SEES)


def _llama4() -> Shapes:
    """The norm has the name that older converters gave it."""
    yield from ((name, shape) for name, shape in _clip() if name != "v.patch_embd.weight")
    yield "v.patch_embd.weight", (SEES, 3 * PATCH * PATCH)
    yield "v.class_embd", (SEES,)
    yield "v.position_embd.weight", ((SIDE // PATCH) ** 2 + 1, SEES)
    yield from _biased(**{"v.pre_ln": (SEES,), "v.post_ln": (SEES,)}).items()
    yield "mm.model.mlp.1.weight", (20, 4 * SEES)
    yield "mm.model.mlp.2.weight", (20, 20)
    yield "mm.model.fc.weight", (WIDTH, 20)


def _with_class() -> Shapes:
    yield from _clip()
    yield "v.class_embd", (SEES,)
    yield "v.position_embd.weight", ((SIDE // PATCH) ** 2 + 1, SEES)
    yield from _biased(**{"v.pre_ln": (SEES,)}).items()


def _llava() -> Shapes:
    yield from _with_class()
    yield from _biased(**{"mm.0": (WIDTH, SEES), "mm.2": (WIDTH, WIDTH)}).items()


def _ldp() -> Shapes:
    yield from _with_class()
    yield from _biased(**{"mm.model.mlp.1": (WIDTH, SEES), "mm.model.mlp.3": (WIDTH, WIDTH)}).items()
    for block in ("mm.model.mb_block.1.block.", "mm.model.mb_block.2.block."):
        yield f"{block}0.0.weight", (WIDTH, 3, 3)
        yield f"{block}2.0.weight", (WIDTH, WIDTH)
        squeeze = {"1.fc1": (8, WIDTH), "1.fc2": (WIDTH, 8)}
        shapes = {"0.1": (WIDTH,), **squeeze, "2.1": (WIDTH,)}
        yield from _biased(**{f"{block}{name}": shape for name, shape in shapes.items()}).items()


def _qwen25vl() -> Shapes:
    for n in range(2):
        yield f"v.patch_embd_{n}.weight", (SEES, 3, PATCH, PATCH)
    forward = {"ffn_gate": (EYE_HIDDEN, SEES), "ffn_up": (EYE_HIDDEN, SEES), "ffn_down": (SEES, EYE_HIDDEN)}
    yield from _blocks(
        "v.blk.", 2, {"ln1.weight": (SEES,), "ln2.weight": (SEES,), **_biased(**_ATTENTION, **forward)}
    )
    yield "v.merger.ln_q.weight", (SEES,)
    yield from _biased(
        **{"v.merger.mlp.0": (4 * SEES, 4 * SEES), "v.merger.mlp.2": (WIDTH, 4 * SEES)}
    ).items()


def _qwen2vl() -> Shapes:
    """The names of llama.cpp's projectors."""
    names = {"patch_embd_0.weight": "patch_embd.weight", "patch_embd_1.weight": "patch_embd.weight.1"}
    for name, shape in _qwen25vl():
        renamed = f"v.{names.get(name[2:], name[2:])}"
        yield renamed.replace("v.merger.ln_q", "v.post_ln").replace("v.merger.mlp.", "mm."), shape


def _qwen3vl() -> Shapes:
    yield "v.patch_embed.weight", (3 * SEES, 2, PATCH, PATCH)
    yield "v.patch_embed.bias", (SEES,)
    yield "v.pos_embed.weight", (9, SEES)
    forward = {"mlp.linear_fc1": (EYE_HIDDEN, SEES), "mlp.linear_fc2": (SEES, EYE_HIDDEN)}
    yield from _blocks("v.blk.", 2, _biased(norm1=(SEES,), norm2=(SEES,), **_ATTENTION, **forward))
    for name, norm in (("merger", SEES), ("deepstack_merger.0", 4 * SEES), ("deepstack_merger.1", 4 * SEES)):
        parts = {"norm": (norm,), "linear_fc1": (4 * SEES, 4 * SEES), "linear_fc2": (WIDTH, 4 * SEES)}
        yield from _biased(**{f"v.{name}.{part}": shape for part, shape in parts.items()}).items()


def _mllama() -> Shapes:
    positions, ratios = (SIDE // PATCH) ** 2 + 1, 9
    yield "v.class_embd", (SEES,)
    yield "v.patch_embd.weight", (SEES, 3, PATCH, PATCH)
    yield "v.position_embd.weight", (positions, SEES)
    yield "v.tile_position_embd.weight", (ratios, 4 * positions * SEES)
    for name in ("pre_tile_position_embd", "post_tile_position_embd"):
        yield f"v.{name}.weight", (ratios, 4 * SEES)
    for name in ("position_embd", "tile_position_embd", "pre_tile_position_embd", "post_tile_position_embd"):
        yield f"v.{name}.gate", (1,)
    yield from _biased(**{"v.pre_ln": (SEES,), "v.post_ln": (SEES,)}).items()
    block = {
        **{f"attn_{part}.weight": (SEES, SEES) for part in ("q", "k", "v", "output")},
        **_biased(
            attn_norm=(SEES,), ffn_norm=(SEES,), ffn_up=(EYE_HIDDEN, SEES), ffn_down=(SEES, EYE_HIDDEN)
        ),
    }
    yield from _blocks("v.blk.", 2, block)
    yield from _blocks("v.global.blk.", 1, {**block, "attn_gate": (1,), "ffn_gate": (1,)})
    yield from _biased(**{"mm.0": (WIDTH, 2 * SEES)}).items()


VISION_TENSORS = {
    "gemma3": _gemma3,
    "llava": _llava,
    "qwen25vl": _qwen25vl,
    "qwen2vl": _qwen2vl,
    "qwen3vl": _qwen3vl,
    "mllama": _mllama,
    "idefics3": _idefics3,
    "ldp": _ldp,
    "minicpmv": _minicpmv,
    "minicpm46": _minicpm46,
    "mistral3": _mistral3,
    "llama4": _llama4,
}

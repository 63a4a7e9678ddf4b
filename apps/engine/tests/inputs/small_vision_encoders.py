"""The encoders of small models that see: metadata and tensors, in the layouts that users have."""

from __future__ import annotations

from typing import Any

from small_vision_texts import WIDTH, Shapes

SEES, EYES, EYE_HIDDEN = 16, 2, 24  # the encoder's width, heads and hidden width
SIDE, PATCH = 28, 7  # a grid of 4 x 4

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
    "llava16": {**_SIZES, **_COLOURS, "image_size": 14, "image_grid_pinpoints": [14, 28, 28, 14, 28, 28]},
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
    "qwen2": {**_SIZES, **_COLOURS, "feed_forward_length": WIDTH},  # as llama.cpp's converter writes it
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
    "phi4mm": {**_SIZES, **_COLOURS, "max_num_tiles": 6},
    "idefics3": {**_SIZES, **_COLOURS, "projector.scale_factor": 4, "preproc_image_size": 2 * SIDE},
    "ldp": {**_SIZES, **_COLOURS},
    "ldpv2": {**_SIZES, **_COLOURS},
    "qwen35": {**_SIZES, **_COLOURS, "spatial_merge_size": 2, "is_deepstack_layers": [False, False]},
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


def _with_class(patches: int = (SIDE // PATCH) ** 2) -> Shapes:
    yield from _clip()
    yield "v.class_embd", (SEES,)
    yield "v.position_embd.weight", (patches + 1, SEES)
    yield from _biased(**{"v.pre_ln": (SEES,)}).items()


def _llava() -> Shapes:
    yield from _with_class()
    yield from _biased(**{"mm.0": (WIDTH, SEES), "mm.2": (WIDTH, WIDTH)}).items()


def _llava16() -> Shapes:
    yield from _with_class(patches=4)
    yield from _biased(**{"mm.0": (WIDTH, SEES), "mm.2": (WIDTH, WIDTH)}).items()
    yield "model.image_newline", (WIDTH,)


def _ldp() -> Shapes:
    yield from _with_class()
    yield from _biased(**{"mm.model.mlp.1": (WIDTH, SEES), "mm.model.mlp.3": (WIDTH, WIDTH)}).items()
    for block in ("mm.model.mb_block.1.block.", "mm.model.mb_block.2.block."):
        yield f"{block}0.0.weight", (WIDTH, 3, 3)
        yield f"{block}2.0.weight", (WIDTH, WIDTH)
        squeeze = {"1.fc1": (8, WIDTH), "1.fc2": (WIDTH, 8)}
        shapes = {"0.1": (WIDTH,), **squeeze, "2.1": (WIDTH,)}
        yield from _biased(**{f"{block}{name}": shape for name, shape in shapes.items()}).items()


def _ldpv2() -> Shapes:
    yield from _with_class()
    yield from _biased(**{"mm.model.mlp.0": (WIDTH, SEES), "mm.model.mlp.2": (WIDTH, WIDTH)}).items()
    yield "mm.model.peg.0.weight", (WIDTH, 1, 3, 3)
    yield "mm.model.peg.0.bias", (WIDTH,)


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


def _qwen2() -> Shapes:
    yield from ((name, shape) for name, shape in _clip() if name != "v.patch_embd.weight")
    for name in ("weight", "weight.1"):
        yield f"v.patch_embd.{name}", (SEES, 3, PATCH, PATCH)
    whole = {"v.post_ln": (SEES,), "mm.0": (4 * SEES, 4 * SEES), "mm.2": (WIDTH, 4 * SEES)}
    yield from _biased(**whole).items()


def _qwen3vl() -> Shapes:
    yield "v.patch_embed.weight", (3 * SEES, 2, PATCH, PATCH)
    yield "v.patch_embed.bias", (SEES,)
    yield "v.pos_embed.weight", (9, SEES)
    forward = {"mlp.linear_fc1": (EYE_HIDDEN, SEES), "mlp.linear_fc2": (SEES, EYE_HIDDEN)}
    yield from _blocks("v.blk.", 2, _biased(norm1=(SEES,), norm2=(SEES,), **_ATTENTION, **forward))
    for name, norm in (("merger", SEES), ("deepstack_merger.0", 4 * SEES), ("deepstack_merger.1", 4 * SEES)):
        parts = {"norm": (norm,), "linear_fc1": (4 * SEES, 4 * SEES), "linear_fc2": (WIDTH, 4 * SEES)}
        yield from _biased(**{f"v.{name}.{part}": shape for part, shape in parts.items()}).items()


def _qwen35() -> Shapes:
    """The names of llama.cpp's projectors."""
    for name in ("weight", "weight.1"):
        yield f"v.patch_embd.{name}", (SEES, 3, PATCH, PATCH)
    yield "v.patch_embd.bias", (SEES,)
    yield "v.position_embd.weight", (9, SEES)
    block = {"ffn_up": (EYE_HIDDEN, SEES), "ffn_down": (SEES, EYE_HIDDEN), "attn_out": (SEES, SEES)}
    norms = {"ln1": (SEES,), "ln2": (SEES,)}
    yield from _blocks("v.blk.", 2, _biased(**norms, **block, attn_qkv=(3 * SEES, SEES)))
    whole = {"v.post_ln": (SEES,), "mm.0": (4 * SEES, 4 * SEES), "mm.2": (WIDTH, 4 * SEES)}
    yield from _biased(**whole).items()


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


def _phi4mm() -> Shapes:
    yield from ((name, shape) for name, shape in _siglip() if ".post_ln" not in name)
    yield from _biased(**{"mm.up": (WIDTH, SEES), "mm.down": (WIDTH, WIDTH)}).items()
    yield from ((f"mm.{name}.weight", (SEES,)) for name in ("line_end", "separator"))


VISION_TENSORS = {
    "gemma3": _gemma3,
    "llava": _llava,
    "llava16": _llava16,
    "qwen25vl": _qwen25vl,
    "qwen2vl": _qwen2vl,
    "qwen2": _qwen2,
    "qwen3vl": _qwen3vl,
    "mllama": _mllama,
    "idefics3": _idefics3,
    "ldp": _ldp,
    "ldpv2": _ldpv2,
    "qwen35": _qwen35,
    "minicpmv": _minicpmv,
    "minicpm46": _minicpm46,
    "mistral3": _mistral3,
    "llama4": _llama4,
    "phi4mm": _phi4mm,
}

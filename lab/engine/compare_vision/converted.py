"""Model files in llama.cpp's layout: a text model and a projector, mostly by llama.cpp's own converter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import llama_converter
import numpy as np
from kinds import MARKS, VOCABULARY, WORDS, Kind
from llama_converter import CONTROL, NORMAL, UNKNOWN
from safetensors.torch import load_file, save_file

BREAK = "[IMG_BREAK]"  # of which the converter asks the number
SPECIAL = len(WORDS) + len(MARKS)
BYTE_LEVEL = {"\n": "Ċ", "\n\n": "ĊĊ", "▁": "Ġ", "▁a": "Ġa", "▁b": "Ġb"}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def save(kind: Kind, folder: Path) -> Path:
    """The folder that transformers writes, and a tokenizer."""
    kind.model.save_pretrained(folder)
    kind.images.save_pretrained(folder)
    write_tokenizer(folder)
    described = folder / "config.json"
    config = json.loads(described.read_text())
    (named,) = config["architectures"]
    config["architectures"] = [named.replace("LlavaNext", "Llava")]  # the same text model
    described.write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    renamed = {_published(name): _turned(name, weight) for name, weight in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tokenizer(folder: Path, vocabulary: list[str] = VOCABULARY, special: int = SPECIAL) -> None:
    """A byte-level tokenizer of the vocabulary, whose first words are marks; the converter counts the words."""
    words = {BYTE_LEVEL.get(word, word): id for id, word in enumerate(vocabulary)}
    marks = [{"id": id, "content": vocabulary[id], "special": True} for id in range(special)]
    steps = [
        {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    merges = [pair for pair in (["Ċ", "Ċ"], ["Ġ", "a"], ["Ġ", "b"]) if "".join(pair) in words]
    model = {"type": "BPE", "vocab": words, "merges": merges}
    whole = {"added_tokens": marks, "model": model, "decoder": {"type": "ByteLevel"}}
    whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    if BREAK in words:
        config["added_tokens_decoder"] = {words[BREAK]: {"content": BREAK}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _published(name: str) -> str:
    """The name of a weight in the published files, where newer versions of transformers save another."""
    return re.sub(
        r"^(model\.)?vision_tower\.(?=embeddings|encoder|post_layernorm)",
        r"\1vision_tower.vision_model.",
        name,
    )


def _turned(name: str, weight: Any) -> Any:
    """A weight as the published files have it: matrices of the experts of Qwen 3 VL are transposed."""
    return weight.transpose(1, 2).contiguous() if ".mlp.experts." in name and weight.dim() == 3 else weight


def convert(folder: Path, target: Path, converter: Path, *, projector: bool = False) -> Path:
    """The converter's file in f32: the text model, or the projector. The vocabulary is a stand-in."""

    def prepare(made: Any) -> None:
        if not projector:
            writing = getattr(made, "impl", made)  # some converters choose another by the configuration
            writing.set_vocab = lambda: write_vocabulary(writing.gguf_writer)

    return llama_converter.convert(folder, target, converter, prepare, projector=projector)


def write_vocabulary(writer: Any) -> None:
    """Marks of pictures, letters, and two words."""
    count = len(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores([0.0] * SPECIAL + [-float(len(word) == 1) for word in VOCABULARY[SPECIAL:]])
    writer.add_token_types([UNKNOWN, *[CONTROL] * (SPECIAL - 1), *[NORMAL] * (count - SPECIAL)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_add_space_prefix(False)


def write_llava(kind: Kind, target: Path, *, old: bool, projector: str = "mlp") -> Path:
    """A projector file of llava as llama.cpp's scripts write it; the old ones are of f16, and swap the feed-forward's names."""
    import gguf

    config, weights = kind.model.config, kind.model.state_dict()
    vision = config.vision_config
    writer = gguf.GGUFWriter(target, "clip")
    writer.add_bool("clip.has_text_encoder", False)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_file_type(1)
    writer.add_string("clip.projector_type", projector)
    writer.add_uint32("clip.vision.image_size", vision.image_size)
    writer.add_uint32("clip.vision.patch_size", vision.patch_size)
    writer.add_uint32("clip.vision.embedding_length", vision.hidden_size)
    writer.add_uint32("clip.vision.feed_forward_length", vision.intermediate_size)
    writer.add_uint32("clip.vision.projection_dim", vision.projection_dim)
    writer.add_uint32("clip.vision.attention.head_count", vision.num_attention_heads)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision.layer_norm_eps)
    blocks = vision.num_hidden_layers - 1
    writer.add_uint32("clip.vision.block_count", blocks)
    if not old:
        writer.add_array("clip.vision.feature_layer", [blocks])
    if points := getattr(config, "image_grid_pinpoints", None):
        writer.add_array("clip.vision.image_grid_pinpoints", [n for point in points for n in point])
        writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
    writer.add_array("clip.vision.image_mean", list(kind.images.image_mean))
    writer.add_array("clip.vision.image_std", list(kind.images.image_std))
    writer.add_bool("clip.use_gelu", False)
    for name, weight in weights.items():
        renamed = _llava_name(name, blocks, old=old)
        if renamed is not None:
            half = weight.dim() == 4 or (weight.dim() == 2 and (old or renamed.startswith("mm.")))
            array = weight.squeeze() if renamed.startswith("mm.") else weight
            writer.add_tensor(renamed, array.numpy().astype(np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _llava_name(name: str, blocks: int, *, old: bool) -> str | None:
    if name == "model.image_newline":
        return name
    first, second = ("ffn_down", "ffn_up") if old else ("ffn_up", "ffn_down")
    for of, to in {
        "model.vision_tower.": "v.",
        "vision_model.": "",
        "model.multi_modal_projector.model": "mm.model",
        "model.multi_modal_projector.linear_1": "mm.0",
        "model.multi_modal_projector.linear_2": "mm.2",
        "embeddings.class_embedding": "class_embd",
        "embeddings.patch_embedding": "patch_embd",
        "embeddings.position_embedding": "position_embd",
        "pre_layrnorm": "pre_ln",
        "encoder.layers": "blk",
        "layer_norm1": "ln1",
        "layer_norm2": "ln2",
        "self_attn.out_proj": "attn_out",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "mlp.fc1": first,
        "mlp.fc2": second,
    }.items():
        name = name.replace(of, to)
    kept = name.startswith(("v.", "mm.")) and "post_layernorm" not in name and f"blk.{blocks}." not in name
    return name if kept else None

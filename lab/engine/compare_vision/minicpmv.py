"""Small random models of MiniCPM-V 2.6, transcribed from the authors' code, which transformers lacks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from converted import write_tokenizer
from kinds import ID, PATCH, SIDE, TEXT, VISION, Kind
from safetensors.torch import save_file
from torch import nn

QUERIES, HEAD = 3, 128


class Resampler(nn.Module):
    """Queries over the patches of one slice, whose keys know their column and row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(QUERIES, width))
        self.kv_proj = nn.Linear(VISION["hidden_size"], width, bias=False)
        self.attn = nn.MultiheadAttention(width, max(1, width // HEAD))
        self.ln_q, self.ln_kv, self.ln_post = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))
        self.proj = nn.Parameter(torch.zeros(width, width))

    def forward(self, x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        x = self.ln_kv(self.kv_proj(x))
        keys = x + torch.from_numpy(sines(x.shape[-1], rows, columns)).float()
        found, _ = self.attn(self.ln_q(self.query)[:, None], keys[:, None], x[:, None])
        return self.ln_post(found[:, 0]) @ self.proj


def sines(width: int, rows: int, columns: int) -> np.ndarray:
    """(patches, width): the authors' get_2d_sincos_pos_embed, in which the column goes first."""
    grid = np.meshgrid(np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32))
    omega = np.arange(width // 4, dtype=np.float32) / (width / 4.0)
    omega = 1.0 / 10000**omega
    angles = [np.einsum("hw,d->hwd", axis, omega) for axis in grid]
    parts = [np.concatenate([np.sin(angle), np.cos(angle)], axis=-1) for angle in angles]
    return np.concatenate(parts, axis=-1).reshape(rows * columns, width)


class Model(nn.Module):
    """The language model, SigLIP with a stretched table of `side` by `side` positions, and the resampler."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        described = {**TEXT, "hidden_size": width, "tie_word_embeddings": False}
        self.llm = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**described))
        eye = {**VISION, "image_size": side * PATCH, "patch_size": PATCH, "vision_use_head": False}
        self.vpm = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**eye))
        self.resampler = Resampler(width)

    def rows(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """The rows of one picture."""
        tower, found, start = getattr(self.vpm, "vision_model", self.vpm), [], 0
        for rows, columns in np.asarray(given["target_sizes"]).tolist():
            end = start + rows * columns * PATCH
            pixels = given["pixel_values"][..., start:end].reshape(3, PATCH, rows, columns, PATCH)
            picture = pixels.permute(0, 2, 1, 3, 4).reshape(1, 3, rows * PATCH, columns * PATCH)
            x = tower.embeddings.patch_embedding(picture).flatten(2).transpose(1, 2)
            x = x + tower.embeddings.position_embedding(places(self.side, rows, columns))
            x = tower.post_layernorm(tower.encoder(inputs_embeds=x).last_hidden_state)
            found.append(self.resampler(x[0], rows, columns))
            start = end
        return torch.cat(found)

    def forward(self, input_ids: torch.Tensor, pictures: list[dict[str, torch.Tensor]] | None = None) -> Any:
        x = self.llm.get_input_embeddings()(input_ids)
        if pictures:
            rows = torch.cat([self.rows(given) for given in pictures])
            x = x.masked_scatter((input_ids == ID["<unk>"])[..., None], rows)
        return self.llm(inputs_embeds=x)


def places(side: int, rows: int, columns: int) -> torch.Tensor:
    """The authors' buckets: the place of each patch in the table; counts are elements of a tensor, `tgt_sizes`."""
    borders = torch.arange(1 / side, 1.0, 1 / side)
    row, column = (
        torch.bucketize(torch.arange(0, 1 - 1e-6, 1 / count), borders, right=True)
        for count in torch.tensor([rows, columns], dtype=torch.int32)
    )
    return (row[:, None] * side + column).flatten()


class Processor(transformers.MiniCPMV4_6ImageProcessor):  # type: ignore[misc]
    """That of 4.6, whose sides are multiples of four patches; those of 2.6 are multiples of one."""

    def find_best_resize(
        self,
        image_size: tuple[int, int],
        scale_resolution: int,
        patch_size: int,
        downsample_mode: str,
        allow_upscale: bool = False,
    ) -> tuple[int, int]:
        found: tuple[int, int] = super().find_best_resize(
            image_size, scale_resolution, patch_size / 4, downsample_mode, allow_upscale
        )
        return int(found[0]), int(found[1])


def save_text(kind: Kind, folder: Path) -> Path:
    """The language model, as the authors' script saves it."""
    kind.model.llm.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def save(kind: Kind, folder: Path) -> Path:
    """The whole model, as the authors publish it."""
    folder.mkdir(parents=True, exist_ok=True)
    eye = {**VISION, "image_size": kind.model.side * PATCH, "model_type": "siglip"}
    config = {
        **kind.model.llm.config.to_dict(),
        "architectures": ["MiniCPMV"],
        "model_type": "minicpmv",
        "version": 2.6,
        "query_num": QUERIES,
        "image_size": SIDE,
        "vision_config": eye,
    }
    (folder / "config.json").write_text(json.dumps(config))
    processor = {"norm_mean": [0.5] * 3, "norm_std": [0.5] * 3, "scale_resolution": SIDE}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    weights = {
        name.replace("vpm.vision_model.", "vpm."): weight.contiguous()
        for name, weight in kind.model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


def write(kind: Kind, target: Path) -> Path:
    """The projector file of llama.cpp's script for MiniCPM-V, in f16."""
    import gguf

    writer = gguf.GGUFWriter(target, "clip")
    writer.add_bool("clip.has_text_encoder", False)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_minicpmv_projector", True)
    writer.add_file_type(1)
    writer.add_string("clip.projector_type", "resampler")
    writer.add_int32("clip.minicpmv_version", 3)
    numbers = {
        "image_size": SIDE,
        "patch_size": PATCH,
        "embedding_length": VISION["hidden_size"],
        "feed_forward_length": VISION["intermediate_size"],
        "projection_dim": 0,
        "attention.head_count": VISION["num_attention_heads"],
        "block_count": VISION["num_hidden_layers"],
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_uint32("clip.minicpmv_query_num", QUERIES)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    writer.add_bool("clip.use_gelu", True)
    tensors = {}
    for name, weight in kind.model.state_dict().items():
        if name.startswith("vpm."):
            tensors[_vision_name(name)] = weight
        elif name.startswith("resampler.attn.in_proj_"):
            kinds = zip(weight.chunk(3), "qkv", strict=True)
            tensors |= {name.replace("in_proj_", f"{letter}."): part for part, letter in kinds}
        elif name == "resampler.proj":
            tensors["resampler.proj.weight"] = weight.T
            tensors["resampler.pos_embed_k"] = torch.from_numpy(
                sines(len(weight), kind.model.side, kind.model.side)
            )
        elif name.startswith("resampler."):
            tensors[name.replace("_proj", "")] = weight
    for name, weight in tensors.items():
        half = weight.dim() == 4 or (weight.dim() == 2 and name.endswith(".weight"))
        array = np.ascontiguousarray(weight.numpy())
        writer.add_tensor(name, array.astype(np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _vision_name(name: str) -> str:
    for of, to in {
        "vpm.": "v.",
        "vision_model.": "",
        "encoder.layers": "blk",
        "embeddings.": "",
        "_proj": "",
        "self_attn.": "attn_",
        "layer_norm": "ln",
        "layernorm": "ln",
        "mlp.fc1": "ffn_down",
        "mlp.fc2": "ffn_up",
        "embedding": "embd",
    }.items():
        name = name.replace(of, to)
    return name


def _processor() -> Processor:
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Processor(scale_resolution=SIDE, patch_size=PATCH, **half)


KINDS = {
    "minicpmv": Kind(partial(Model, TEXT["hidden_size"], 8), _processor, Model.rows),
    "minicpmv-wide": Kind(partial(Model, 2 * HEAD, 70), _processor, Model.rows),
}

"""A small vision-language model in PyTorch: CLIP's encoder, llava's projector, and tiny_llama."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from tiny_llama import Shape, TinyLlama
from torch import Tensor, nn

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class VisionShape:
    """The encoder's sizes."""

    side: int = 48
    patch: int = 8
    width: int = 128
    layers: int = 4
    heads: int = 4
    hidden: int = 384
    eps: float = 1e-5
    text: Shape = field(default_factory=lambda: Shape(layers=2, vocabulary=368, context=256))

    @property
    def patches(self) -> int:
        return (self.side // self.patch) ** 2


class EncoderBlock(nn.Module):
    """One layer of CLIP's encoder, with its activation x * sigmoid(1.702 x)."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.ln1 = nn.LayerNorm(shape.width, shape.eps)
        self.attn_qkv = nn.Linear(shape.width, 3 * shape.width)
        self.attn_out = nn.Linear(shape.width, shape.width)
        self.ln2 = nn.LayerNorm(shape.width, shape.eps)
        self.ffn_up = nn.Linear(shape.width, shape.hidden)
        self.ffn_down = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            self.attn_qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.attn_out(seen.transpose(1, 2).flatten(2))
        h = self.ffn_up(self.ln2(x))
        return x + self.ffn_down(h * torch.sigmoid(1.702 * h))

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a projector file; parts of a joint matrix are views."""
        found = {}
        for kind in ("weight", "bias"):
            for name, part in zip("qkv", getattr(self.attn_qkv, kind).chunk(3), strict=True):
                found[f"attn_{name}.{kind}"] = part
            for name, module in {
                "ln1": self.ln1,
                "ln2": self.ln2,
                "attn_out": self.attn_out,
                "ffn_up": self.ffn_up,
                "ffn_down": self.ffn_down,
            }.items():
                found[f"{name}.{kind}"] = getattr(module, kind)
        return found


class Encoder(nn.Module):
    """From pixels to rows of the text."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.shape = shape
        self.class_embd = nn.Parameter(torch.randn(shape.width) * 0.05)
        self.patch_embd = nn.Conv2d(3, shape.width, shape.patch, shape.patch, bias=False)
        self.position_embd = nn.Parameter(torch.randn(1 + shape.patches, shape.width) * 0.05)
        self.pre_ln = nn.LayerNorm(shape.width, shape.eps)
        self.blocks = nn.ModuleList(EncoderBlock(shape) for _ in range(shape.layers))
        self.projector = nn.ModuleList(
            [nn.Linear(shape.width, shape.text.width), nn.Linear(shape.text.width, shape.text.width)]
        )

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embd(pixels).flatten(2).transpose(1, 2)  # (pictures, patches, width)
        x = torch.cat([self.class_embd.expand(len(pixels), 1, -1), patches], 1) + self.position_embd
        x = self.pre_ln(x)
        for block in self.blocks:
            x = block(x)
        return self.projector[1](F.gelu(self.projector[0](x[:, 1:])))

    def tensors(self) -> dict[str, Tensor]:
        """The weights by their names in a projector file."""
        found = {
            "v.class_embd": self.class_embd,
            "v.patch_embd.weight": self.patch_embd.weight,
            "v.position_embd.weight": self.position_embd,
            "v.pre_ln.weight": self.pre_ln.weight,
            "v.pre_ln.bias": self.pre_ln.bias,
        }
        for i, block in enumerate(self.blocks):
            assert isinstance(block, EncoderBlock)
            found |= {f"v.blk.{i}.{name}": weight for name, weight in block.tensors().items()}
        for name, layer in zip(("mm.0", "mm.2"), self.projector, strict=True):
            assert isinstance(layer, nn.Linear)
            found |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
        return found


class TinyVision(nn.Module):
    """The logits of every position of texts that follow pictures."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape)
        self.text = TinyLlama(shape.text)

    def hidden(self, pixels: Tensor, begin: Tensor, texts: Tensor) -> Tensor:
        """The last states of texts (pictures, questions, length), each after its picture and alone with it.

        `begin` holds the tokens before all pictures.
        """
        pictures, questions, length = texts.shape
        start = F.embedding(begin.expand(pictures, -1), self.text.token_embd)
        words = F.embedding(texts.flatten(1), self.text.token_embd)
        x = torch.cat([start, self.encoder(pixels), words], 1)
        before = x.shape[1] - questions * length
        block = torch.cat([torch.full((before,), -1), torch.arange(questions).repeat_interleave(length)])
        mask = (block[None] == -1) | (block[None] == block[:, None])
        mask &= torch.ones_like(mask).tril()
        positions = torch.cat([torch.arange(before), before + torch.arange(length).repeat(questions)])
        return self.text.through(x, self.text.by[positions], mask)[:, before:].unflatten(
            1, (questions, length)
        )

    def logits(self, pixels: Tensor, begin: Tensor, texts: Tensor) -> Tensor:
        return F.linear(self.hidden(pixels, begin, texts), self.text.token_embd)

    def matrices(self) -> list[nn.Parameter]:
        """The matrices of all blocks."""
        inner = [*self.encoder.blocks.parameters(), *self.encoder.projector.parameters()]
        return [*self.text.matrices(), *(weight for weight in inner if weight.ndim == 2)]

    def load_tensors(self, text: Mapping[str, np.ndarray], encoder: Mapping[str, np.ndarray]) -> None:
        """Load the weights of the two files."""
        self.text.load_tensors(text)
        with torch.no_grad():
            for name, weight in self.encoder.tensors().items():
                weight.copy_(torch.from_numpy(np.array(encoder[name], np.float32)).reshape(weight.shape))


def pixels_of(pictures: np.ndarray) -> Tensor:
    """Pictures (count, height, width, 3) of uint8 of the encoder's own size, normalised."""
    values = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    return (values - mean) / std

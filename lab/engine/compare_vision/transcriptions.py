"""MiniCPM-V 2.6 and MobileVLM in plain NumPy, after the published code and by another hand than the engine's.

Sources: OpenBMB's `modeling_navit_siglip.py` and `resampler.py` (MiniCPM-V 2.6); Meituan's
`vision_projector.py` (MobileVLM) with torchvision's `InvertedResidual` and timm's `LayerNormAct2d`. Names of
tensors are those of llama.cpp's conversion scripts. The gguf package reads the weights; all numbers are float64.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HEAD = 128  # the width of a head of MiniCPM-V's resampler; narrower resamplers have one head


class File:
    """The keys and float64 weights of a projector file."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader  # that of llama.cpp's sources where a model was converted before
        from gguf.quants import dequantize

        reader = GGUFReader(path)
        self.keys: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        self.weights = {
            tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }

    def vision(self, key: str) -> Any:
        return self.keys[f"clip.vision.{key}"]

    def linear(self, x: Array, name: str) -> Array:
        bias = self.weights.get(f"{name}.bias")
        x = x @ self.weights[f"{name}.weight"].T
        return x if bias is None else x + bias

    def layer_norm(self, x: Array, name: str, eps: float) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, names: tuple[str, str, str, str], q: Array, k: Array, v: Array, heads: int) -> Array:
        """Attention of q to k and v after their projections, then the projection of the result."""
        q, k, v = (
            self.linear(x, name).reshape(len(x), heads, -1).swapaxes(0, 1)
            for x, name in zip((q, k, v), names[:3], strict=True)
        )  # (heads, tokens, head_dim)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        return self.linear(mixed.swapaxes(0, 1).reshape(q.shape[1], -1), names[3])

    def patches(self, pixels: Array) -> tuple[Array, int, int]:
        """The embedded patches of channels-first pixels, row by row, then their rows and columns."""
        size, weight = self.vision("patch_size"), self.weights["v.patch_embd.weight"]
        rows, columns = pixels.shape[1] // size, pixels.shape[2] // size
        cut = pixels.reshape(3, rows, size, columns, size).transpose(1, 3, 0, 2, 4)
        x = cut.reshape(rows * columns, -1) @ weight.reshape(len(weight), -1).T
        return x + self.weights.get("v.patch_embd.bias", 0.0), rows, columns

    def blocks(self, x: Array, activation: Any) -> Array:
        """The transformer's blocks; old scripts call the first matrix of a feed-forward part `ffn_down`."""
        eps, heads = self.vision("attention.layer_norm_epsilon"), self.vision("attention.head_count")
        for block in (f"v.blk.{n}" for n in range(self.vision("block_count"))):
            names = (f"{block}.attn_q", f"{block}.attn_k", f"{block}.attn_v", f"{block}.attn_out")
            y = self.layer_norm(x, f"{block}.ln1", eps)
            x = x + self.attention(names, y, y, y, heads)
            swapped = self.weights[f"{block}.ffn_down.weight"].shape[1] == x.shape[1]
            first, second = ("ffn_down", "ffn_up") if swapped else ("ffn_up", "ffn_down")
            y = self.linear(self.layer_norm(x, f"{block}.ln2", eps), f"{block}.{first}")
            x = x + self.linear(activation(y), f"{block}.{second}")
        return x


def gelu(x: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    result: Array = 0.5 * x * (1 + erf(x / math.sqrt(2)))
    return result


def tanh_gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


def quick_gelu(x: Array) -> Array:
    result: Array = x / (1 + np.exp(-1.702 * x))
    return result


def hard_sigmoid(x: Array) -> Array:
    return np.clip(x + 3, 0, 6) / 6


# -- MiniCPM-V 2.6


def arange(start: float, step: float, count: int) -> NDArray[np.float32]:
    """torch.arange in float32 on x86: of whole sixteens each eight numbers count from a rounded first one."""
    exact = start + step * np.arange(count)
    eights = exact[: count - count % 16].reshape(-1, 8)
    eights[:] = eights[:, :1].astype(np.float32).astype(np.float64) + step * np.arange(8)
    return exact.astype(np.float32)


def buckets(patches: int, side: int) -> NDArray[np.intp]:
    """The learned positions, of `side` ones, of a row of patches: `torch.bucketize(..., right=True)`.

    Rounding decides where a coordinate falls on a border. The code divides 1 by an element of the tensor
    `tgt_sizes`, so the step of the coordinates is rounded to float32; that of the borders is a Python float.
    """
    coordinates = arange(0.0, float(np.float32(1) / np.float32(patches)), patches)
    return np.searchsorted(arange(1 / side, 1 / side, side - 1), coordinates, side="right")


def sincos(width: int, rows: int, columns: int) -> Array:
    """2-D positions: the column in the first half of the width, then the row; sines before cosines."""
    omega = 10000.0 ** -(np.arange(width // 4) / (width / 4))
    row, column = np.divmod(np.arange(rows * columns), columns)
    angles = [np.outer(at, omega) for at in (column, row)]
    return np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)], axis=1)


def parts(height: int, width: int, scale: int, patch: int, most: int = 9) -> list[tuple[int, int]]:
    """The heights and widths of the overview and of the slices: `slice_image` of the image processor."""

    def divided(length: float, unit: int) -> int:
        return max(round(length / unit) * unit, unit)

    def best(height: float, width: float) -> tuple[int, int]:
        fitted = int(scale / math.sqrt(width / height))
        return divided(fitted, patch), divided(int(fitted * (width / height)), patch)

    overview, multiple = best(height, width), min(math.ceil(width * height / (scale * scale)), most)
    if multiple <= 1:
        return [overview]
    grids = [
        (columns, count // columns)
        for count in (multiple - 1, multiple, multiple + 1)
        if count != 1 and count <= most
        for columns in range(1, count + 1)
        if count % columns == 0
    ]
    columns, rows = min(grids, key=lambda grid: abs(math.log(width / height) - math.log(grid[0] / grid[1])))
    return [overview] + rows * columns * [
        best(divided(height, rows) / rows, divided(width, columns) / columns)
    ]


def minicpmv_slice(file: File, pixels: NDArray[np.float32]) -> Array:
    """The rows of one slice (3, height, width)."""
    eps = file.vision("attention.layer_norm_epsilon")
    x, rows, columns = file.patches(pixels.astype(np.float64))
    learned = file.weights["v.position_embd.weight"]
    side = math.isqrt(len(learned))
    x = x + learned[(buckets(rows, side)[:, None] * side + buckets(columns, side)).ravel()]
    x = file.layer_norm(file.blocks(x, tanh_gelu), "v.post_ln", eps)

    x = file.layer_norm(file.linear(x, "resampler.kv"), "resampler.ln_kv", 1e-6)
    q = file.layer_norm(file.weights["resampler.query"], "resampler.ln_q", 1e-6)
    names = ("resampler.attn.q", "resampler.attn.k", "resampler.attn.v", "resampler.attn.out")
    k, heads = x + sincos(x.shape[1], rows, columns), max(1, x.shape[1] // HEAD)
    x = file.layer_norm(file.attention(names, q, k, x, heads), "resampler.ln_post", 1e-6)
    return file.linear(x, "resampler.proj")  # the file's matrix is the transposed one of `x @ proj`


def minicpmv(file: File, pixels: NDArray[np.float32], size: tuple[int, int]) -> Array:
    """The rows of a picture of this size; all patches lie side by side, (1, 3, patch, n * patch)."""
    patch, rows, begin = file.vision("patch_size"), [], 0
    for height, width in parts(*size, file.vision("image_size"), patch):
        end = begin + height * width // patch
        strips = pixels[0, :, :, begin:end].reshape(3, patch, height // patch, width)
        rows.append(minicpmv_slice(file, strips.swapaxes(1, 2).reshape(3, height, width)))
        begin = end
    if begin != pixels.shape[3]:
        raise ValueError(f"the slices take {begin} columns of pixels, found {pixels.shape[3]}")
    return np.concatenate(rows)


# -- MobileVLM


def depthwise(x: Array, weight: Array, stride: int) -> Array:
    """A 3 x 3 convolution of each channel alone, zeros around; x is (rows, columns, channels)."""
    rows, columns = x.shape[:2]
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    parts = [
        padded[i : i + rows : stride, j : j + columns : stride] * weight[:, i, j]
        for i in range(3)
        for j in range(3)
    ]
    result: Array = np.sum(parts, axis=0)
    return result


def inverted_residual(file: File, x: Array, name: str, stride: int) -> Array:
    """MobileNetV3's block without expansion; LayerNormAct2d has eps 1e-5, convolutions no bias."""
    y = depthwise(x, file.weights[f"{name}.0.0.weight"], stride)
    y = file.layer_norm(y, f"{name}.0.1", 1e-5)
    y = y * hard_sigmoid(y)  # hard-swish
    squeezed = np.maximum(file.linear(y.mean((0, 1)), f"{name}.1.fc1"), 0)
    y = y * hard_sigmoid(file.linear(squeezed, f"{name}.1.fc2"))
    y = file.layer_norm(file.linear(y, f"{name}.2.0"), f"{name}.2.1", 1e-5)
    return x + y if stride == 1 else y


def mobilevlm(file: File, pixels: NDArray[np.float32]) -> Array:
    """The rows of one picture (1, 3, side, side)."""
    x, rows, columns = file.patches(pixels[0].astype(np.float64))
    x = np.concatenate([file.weights["v.class_embd"][None], x]) + file.weights["v.position_embd.weight"]
    x = file.layer_norm(x, "v.pre_ln", file.vision("attention.layer_norm_epsilon"))
    x = file.blocks(x, quick_gelu)[
        1:
    ]  # the file lacks CLIP's last block, as `mm_vision_select_layer` -2 asks

    first, second = (1, 3) if file.keys["clip.projector_type"] == "ldp" else (0, 2)
    x = file.linear(gelu(file.linear(x, f"mm.model.mlp.{first}")), f"mm.model.mlp.{second}")
    x = x.reshape(rows, columns, -1)
    if file.keys["clip.projector_type"] == "ldp":
        x = inverted_residual(file, x, "mm.model.mb_block.1.block", 1)
        x = inverted_residual(file, x, "mm.model.mb_block.2.block", 2)
    else:  # AdaptiveAvgPool2d(12, 12) of 24 x 24 patches
        x = x.reshape(rows // 2, 2, columns // 2, 2, -1).mean((1, 3))
        x = x + depthwise(x, file.weights["mm.model.peg.0.weight"], 1) + file.weights["mm.model.peg.0.bias"]
    return x.reshape(-1, x.shape[-1])


def rows(path: Path, pixels: NDArray[np.float32], size: tuple[int, int]) -> Array:
    """The rows of a prepared picture, which had this height and width before."""
    file = File(path)
    if file.keys["clip.projector_type"] == "resampler":
        return minicpmv(file, pixels, size)
    return mobilevlm(file, pixels)

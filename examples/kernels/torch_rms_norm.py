"""The root mean square norm in PyTorch, in the tensors' own dtypes, and its proof: pytest examples/kernels/torch_rms_norm.py."""

import torch

from backbay_conformance import check_kernel


def rms_norm(x, weight=None, eps=1e-5):
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.float()).to(x.dtype)


def test_rms_norm():
    check_kernel(rms_norm, "rms_norm", native=torch.from_dlpack)

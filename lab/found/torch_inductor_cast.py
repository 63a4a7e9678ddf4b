"""torch.compile leaves out the rounding of f32 to f16 and back, unless `emulate_precision_casts` is set.

project: PyTorch
needs: torch
effect: a cast to f16 or bf16 rounds nothing
workaround: plugins/torch/src/backbay_torch/engine.py: emulate_precision_casts
thread: https://github.com/pytorch/pytorch/issues/185337
shown: 2.14.1
right: none
"""

import sys

try:
    import torch
except ImportError:
    print("not installed: torch")
    sys.exit(77)


def lost(x: torch.Tensor) -> torch.Tensor:
    return x.half().float() - x


print("torch", torch.__version__)
x = torch.full((8,), 1 / 3)
expected, came = lost(x)[0].item(), torch.compile(lost)(x)[0].item()
print("expected", expected)
print("came    ", came)
sys.exit(0 if came != expected else 1)

"""torch.compile takes a copy of a view for the view; `as_strided` of the copy reads from where the view's memory begins.

project: PyTorch
needs: torch
effect: wrong numbers, without an error
workaround: plugins/torch/src/backbay_torch/engine.py: longer
thread: https://github.com/pytorch/pytorch/issues/197489
shown: 2.14.1
right: none
"""

import sys

try:
    import torch
except ImportError:
    print("not installed: torch")
    sys.exit(77)


def copied(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((4,), (1,), 2).clone().as_strided((2,), (1,), 0) + 1


print("torch", torch.__version__)
x = torch.arange(6.0)
expected, came = copied(x).tolist(), torch.compile(copied)(x).tolist()
print("expected", expected)
print("came    ", came)
sys.exit(0 if came != expected else 1)

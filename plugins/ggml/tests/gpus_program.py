"""A program that tells what doctor says of GPUs, computes a product, and tells where."""

PROGRAM = """
import backbay
from backbay_ggml import Ggml

print(Ggml.diagnose()["gpus"])
with backbay.open(None, backend="ggml") as backend, backend.new_context() as context:
    weights = context.from_floats([[1, 0, 2], [0, 3, 0]])
    result = weights.mulmat(context, context.input().from_floats([1, 1, 1]))
    context.compute(result)
    print([device.id for device in backend.devices()], result.floats().tolist())
"""

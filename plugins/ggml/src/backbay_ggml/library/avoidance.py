"""What ggml's own code computes wrongly or slowly, so that the plugin lowers some ops to other code of ggml."""

from __future__ import annotations

from typing import NamedTuple

from backbay import DType

FLOATS = (DType.F32,)
BLOCKS = tuple(dtype for dtype in DType if dtype.is_quantized)


class LibraryFault(NamedTuple):
    """Ops, by their names, and what ggml's nearest code for them does. lab/found shows the faults."""

    ops: str
    reason: str
    dtypes: tuple[DType, ...] = FLOATS


BLOCKS_JOINED = LibraryFault("concat", "old versions copy elements of the size of a block", BLOCKS)
CAPPED_TILES = LibraryFault(
    "scaled_dot_product_attention", "a softcap of 64 queries attends to keys that are not there"
)
CONV_IN_F16 = LibraryFault("conv2d", "new versions round images to f16")
FACTORS_OUTSIDE = LibraryFault("rope", "it reads factors of pairs that are not rotated")
HALF_SUMS = LibraryFault("mulmat_full_prec", "builds for AVX512-FP16 sum in f16", (DType.F16,))
LONG_HEADS = LibraryFault("delta_rule", "GPUs compute nonsense for heads of more than 64 elements")
NAN_IN_ORDER = LibraryFault("argsort top_k", "NaN makes the sort leave its array")
NEAREST_IN_F32 = LibraryFault("interpolate", "it divides in f32, and may miss by one element")
NO_TERMS = LibraryFault("mulmat mulmat_full_prec", "a product of no terms ends the process")
PARTIAL_BLOCKS_OF_HEADS = LibraryFault(
    "delta_rule", "it reads and writes past heads of no multiple of 64 elements"
)
PARTIAL_VECTORS = LibraryFault(
    "scaled_dot_product_attention", "tiles of 64 queries read past values of no multiple of 16 elements"
)
ROWS_OVERWRITTEN = LibraryFault("add_id", "it may write its result over the rows that it still reads")
SLOW_COLUMNS = LibraryFault(
    "mulmat", "one column, or few, wait for memory", (DType.Q8_0, DType.F16, DType.BF16)
)
SLOW_CONVOLUTION = LibraryFault("ssm_conv", "it multiplies element by element")
VIEWS_OF_EXPERTS = LibraryFault("mulmat_id", "GPUs misread experts, columns and ids that do not adjoin")

AVOIDANCES = tuple(each for each in list(globals().values()) if isinstance(each, LibraryFault))

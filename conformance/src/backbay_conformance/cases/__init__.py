"""The cases, a module per family of ops; importing this declares them all."""

from . import (
    attention,
    binary,
    elementwise,
    index,
    linear,
    matrix,
    norm,
    order,
    reduce,
    sequence,
    shape,
    spatial,
    write,
)

FAMILIES = (
    *(attention, binary, elementwise, index, linear, matrix, norm),
    *(order, reduce, sequence, shape, spatial, write),
)

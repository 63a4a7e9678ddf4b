"""The cases, one module for each family of ops; importing this package declares them all."""

from . import (
    attention,
    binary,
    elementwise,
    given,
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
    *(attention, binary, elementwise, given, index, linear, matrix, norm),
    *(order, reduce, sequence, shape, spatial, write),
)

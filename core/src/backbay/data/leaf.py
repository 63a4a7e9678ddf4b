"""Leaves, which are tensors that the host writes, and weights: their data, and numbers that are checked and converted."""

from __future__ import annotations

from threading import RLock
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import BackbayError, ClosedError, DTypeError, NotComputedError, ShapeError
from ..types.dtype import DType
from ..types.gpu_layers import Placement
from ..types.spec import Spec
from .buffers import Buffer
from .encoding import NUMPY, Array, Bytes, encode, gather, numpy_view

_CONVERTED = np.dtype(np.void)  # of no array: NumPy has no quantized types, and bf16 is converted


def to_array(data: object, kind: Any) -> Array:
    """Convert a NumPy array, list or buffer of numbers to an array; raw bytes are numbers of `kind`."""
    if isinstance(data, (bytes, bytearray)):
        return np.frombuffer(data, kind)
    if isinstance(data, DType):  # NumPy would take it for a number
        raise DTypeError(
            f"expected numbers, got the dtype {data}; data come first, and a leaf of another dtype is made by "
            "ctx.empty(dtype, *shape).from_floats(data)"
        )
    if isinstance(data, Spec):
        raise DTypeError(f"expected numbers, got the tensor {data}; read it with numpy(), or copy it")
    try:
        array: Array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"not a regular array: {error}") from error
    if array.size == 0:
        return array.astype(kind)
    if array.dtype.kind not in "biuf":
        raise DTypeError(f"expected numbers, got an array of {array.dtype}")
    return array


def from_floats(data: object, spec: Spec) -> Bytes:
    """Encode numbers as the bytes of a leaf of `spec`."""
    array = to_array(data, np.float32)
    if (
        spec.dtype.is_integer
        and array.dtype.kind == "f"
        and not (np.isfinite(array).all() and np.array_equal(array, np.trunc(array)))
    ):
        raise DTypeError(f"{spec} cannot hold fractions, infinities or NaN; cast a float leaf instead")
    return _encoded(array, spec)


def from_ints(data: object, spec: Spec) -> Bytes:
    array = to_array(data, np.int32)
    if array.dtype.kind == "f":
        raise DTypeError(f"expected integers, got an array of {array.dtype}; call from_floats")
    return _encoded(array, spec)


def from_buffer(data: object, spec: Spec) -> Bytes:
    """Take bytes as they are; ShapeError if they are not as many as `spec` has."""
    try:
        raw = np.frombuffer(memoryview(data), np.uint8)  # type: ignore[arg-type]  # TypeError says it is none
    except (TypeError, ValueError, BufferError) as error:
        raise DTypeError(f"expected bytes or a contiguous buffer: {error}") from error
    if raw.size != spec.nbytes:
        raise ShapeError(f"{raw.size} bytes do not fill the {spec.nbytes} of {spec}")
    return raw


def _encoded(array: Array, spec: Spec) -> Bytes:
    """Check and convert numbers. A decoding step writes several small leaves, so the common case does neither."""
    if array.size != spec.size:
        raise ShapeError(f"{array.size} numbers do not fill the {spec.size} of {spec}")
    kind = NUMPY.get(spec.dtype, _CONVERTED)
    if array.dtype == kind and kind.kind != "u":  # in NUMPY, bf16 is an unsigned integer
        raw = array
    elif spec.dtype.is_integer:
        _check_range(array, spec)
        raw = array.astype(kind)
    else:
        with np.errstate(all="ignore"):  # a float that is too large for the dtype becomes infinity
            raw = encode(np.ascontiguousarray(array).reshape(spec.shape[::-1]), spec.dtype)
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8)


def _check_range(array: Array, spec: Spec) -> None:
    if array.size == 0:
        return
    limit = 1 << (8 * spec.dtype.type_size - 1)
    low, high = int(np.minimum.reduce(array, axis=None)), int(np.maximum.reduce(array, axis=None))
    if low < -limit or high >= limit:
        raise ShapeError(f"{spec} cannot hold {low if low < -limit else high}")


class BackendState(Protocol):
    """The part of a backend that a leaf uses."""

    closed: bool
    closed_because: str
    loaded: bool

    def why_no_data(self) -> str: ...

    def check_file(self) -> None: ...


class LeafRecording(Protocol):
    """The part of a recording that its leaves use."""

    blocked: bool
    closed: bool
    data_lock: RLock

    def refuse(self) -> NoReturn: ...

    def forget_results(self) -> None: ...


class Leaf:
    """The state of a leaf or weight: its buffer, its flags, and the bounds of its ids."""

    def __init__(
        self,
        backend: BackendState,
        home: LeafRecording | None,
        spec: Spec,
        buffer: Buffer | None,
        placement: Placement,
        *,
        name: str = "",
        row_axis: int | None = None,
    ) -> None:
        self.backend, self.home, self.spec = backend, home, spec
        self.buffer, self.placement = buffer, placement
        self._kind = _CONVERTED if spec.dtype is DType.BF16 else NUMPY.get(spec.dtype, _CONVERTED)
        self._nbytes = spec.nbytes
        self.name = name  # the weight's name; empty for a context's leaf
        self.row_axis = row_axis
        self.written = False  # the host wrote data
        self.used = False  # a compiled graph reads or writes it
        self.computed = False  # a graph writes into it
        self.id_uses: dict[tuple[Any, ...], tuple[Spec, int]] = {}

    @property
    def closed(self) -> bool:
        return self.backend.closed or (self.home is not None and self.home.closed)

    def as_stored(self, data: object) -> Bytes | None:
        """The bytes of an array whose elements are as the leaf holds them; None if they must be checked and converted.

        A step of one token writes several small leaves, in little time.
        """
        if not isinstance(data, np.ndarray) or data.dtype != self._kind or data.nbytes != self._nbytes:
            return None
        return data.reshape(-1).view(np.uint8) if data.flags.c_contiguous else None

    def write(self, data: Bytes) -> None:
        """Replace the data; ids are checked first."""
        if self.home is None:
            raise BackbayError(f"{self.name}: weights are read-only")
        with self.home.data_lock:
            if self.home.blocked:
                self._refuse(self.home)
            for use, bound in self.id_uses.values():
                check_ids(data if use is self.spec else gather(data, use), use, bound)
            if self.buffer is not None:
                self.buffer.write(data)
            if self.written or self.used:  # no result depends on a new leaf
                self.home.forget_results()
            self.written = True

    def zero(self) -> None:
        """Fill a new leaf with zeros."""
        assert self.home is not None
        with self.home.data_lock:
            if self.home.blocked:
                self._refuse(self.home)
            if self.buffer is not None:
                self.buffer.zero()
            self.written = True

    def _refuse(self, home: LeafRecording) -> NoReturn:
        self._check_open()  # a closed recording is blocked, too
        home.refuse()

    def read(self) -> Bytes:
        """The data in logical order; the caller must not change or keep it."""
        self._check_open()
        if self.buffer is None or (self.home is None and not self.backend.loaded):
            raise NotComputedError(f"{self.name or self.spec} holds no data: {self.backend.why_no_data()}")
        if self.home is None:
            self.backend.check_file()
        return self.buffer.read()

    def promise_ids(self, use: Spec, bound: int) -> None:
        """Promise that the values in the view `use` are in [0, bound): checked now, and at every write."""
        key = (use.offset, use.shape, use.strides, bound)
        if key in self.id_uses:
            return
        if self.written and self.buffer is not None:
            check_ids(gather(self.buffer.read(), use), use, bound)
        if use.strides is None and use.shape == self.spec.shape and use.dtype is self.spec.dtype:
            use = self.spec  # the whole leaf: `write` then checks the data without a gather
        self.id_uses[key] = (use, bound)

    def _check_open(self) -> None:
        if self.closed:
            owner = f"a closed context or backend{self.backend.closed_because}"
            raise ClosedError(f"{self.name or self.spec} belongs to {owner}")


def check_ids(data: Bytes, use: Spec, bound: int) -> None:
    """Raise ShapeError unless all ids are in [0, bound)."""
    # As unsigned numbers, negative ids are too large: one pass checks both bounds.
    unsigned: NDArray[Any] = data.view(np.uint32 if use.dtype is DType.I32 else np.uint64)
    if unsigned.size and int(np.maximum.reduce(unsigned)) >= bound:
        ids: NDArray[Any] = numpy_view(data, use.dtype)
        wrong = ids[unsigned >= bound][0]
        raise ShapeError(f"ids {use} must be in [0, {bound}), got {wrong}")

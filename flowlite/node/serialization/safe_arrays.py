"""Numpy arrays and scalars and torch tensors in the plain form: a few numbers, and the raw memory.

Numpy and torch are only used when one of their values is met, so neither is required otherwise.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .pickling import storage_bytes
from .safe_base import OUT_OF_LINE, NotPlain, PlainError, type_name, write_size

if TYPE_CHECKING:
    from .safe_base import Reader, Writer

# Booleans, integers, floats, complex numbers, times, bytes and strings. No objects, which could be anything, and no
# structures.
_DTYPE = re.compile(r"[<>|=](?:[biufc]\d{1,2}|[SU]\d{1,9}|[mM]8(?:\[\d{0,9}[a-zA-Z]{1,7}\])?)")
_SCALAR_KINDS = "biufcmM"
_MOST_DIMENSIONS = 64
_TENSOR_TYPES = """
    bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32
    complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
"""
_TENSOR_DTYPES = frozenset(_TENSOR_TYPES.split())
_STORAGE_STEP = 64


def write(encoder: Writer, value: Any) -> None:
    """Writes a value of numpy or torch. Raises `NotPlain` for any other."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(value) is getattr(numpy, "ndarray", None):
        _write_array(encoder, value, numpy)
    elif numpy is not None and isinstance(value, getattr(numpy, "generic", ())):
        _write_scalar(encoder, value, numpy)
    elif torch is not None and type(value) is getattr(torch, "Tensor", None):
        if encoder.tensors is None:
            encoder.tensors = TensorTable(torch)
        encoder.remember(value)
        encoder.out += b"t"
        _write_numbers(encoder.out, encoder.tensors.add(value))
    else:
        raise NotPlain(type_name(value))


def read(decoder: Reader, tag: int) -> Any:
    """Reads what `write` wrote after its tag."""
    if tag == ord("t"):
        return decoder.remember(decoder.tensors[decoder.size()])
    if tag == ord("a"):
        return decoder.remember(_read_array(decoder))
    if tag == ord("n"):
        return _read_scalar(decoder)
    raise PlainError("unknown kind of value")


def _write_numbers(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        write_size(out, number)


def _write_dtype(encoder: Writer, value: Any, numpy: ModuleType) -> None:
    dtype = value.dtype
    name = dtype.str
    if (
        not _DTYPE.fullmatch(name)
        or not dtype.itemsize
        or dtype.metadata
        or numpy.dtype(name) != dtype
    ):
        raise NotPlain(type_name(value), f"its dtype is {dtype}")
    encoder.text(b"", name)


def _read_dtype(decoder: Reader, numpy: ModuleType) -> Any:
    name = decoder.text()
    if not _DTYPE.fullmatch(name):
        raise PlainError(f"{name!r} is no type of array that is accepted")
    dtype = numpy.dtype(name)
    if dtype.hasobject or not dtype.itemsize:
        raise PlainError(f"{name!r} is no type of array that is accepted")
    return dtype


def _write_scalar(encoder: Writer, value: Any, numpy: ModuleType) -> None:
    # Several types can share a name (longlong and int64), and only one of them is restored.
    if (
        value.dtype.kind not in _SCALAR_KINDS
        or type(value) is not numpy.dtype(value.dtype.str).type
    ):
        raise NotPlain(type_name(value))
    encoder.out += b"n"
    _write_dtype(encoder, value, numpy)
    encoder.block(value.tobytes())


def _read_scalar(decoder: Reader) -> Any:
    numpy = _needed("numpy", "a numpy number")
    dtype = _read_dtype(decoder, numpy)
    if dtype.kind not in _SCALAR_KINDS:
        raise PlainError("unknown kind of number")
    (value,) = numpy.frombuffer(bytes(decoder.block()), dtype)
    return value


def _write_array(encoder: Writer, array: Any, numpy: ModuleType) -> None:
    encoder.remember(array)
    encoder.out += b"a"
    _write_dtype(encoder, array, numpy)
    _write_numbers(encoder.out, int(array.flags.writeable), array.ndim, *array.shape)
    # The axes from the longest stride to the shortest: in this order most arrays (Fortran order, transposed) are
    # contiguous.
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    laid_out = array.transpose(order)
    if not laid_out.flags.c_contiguous:
        order = list(range(array.ndim))
        laid_out = numpy.ascontiguousarray(array)
    _write_numbers(encoder.out, *order)
    encoder.block(laid_out.reshape(-1).view(numpy.uint8).data if array.size else b"")


def _read_array(decoder: Reader) -> Any:
    numpy = _needed("numpy", "a numpy array")
    dtype = _read_dtype(decoder, numpy)
    writeable = decoder.size()
    shape = _read_shape(decoder)
    order = [decoder.size() for _ in shape]
    if sorted(order) != list(range(len(shape))):
        raise PlainError("the axes of an array are damaged")
    data = decoder.block()
    if math.prod(shape) * dtype.itemsize != len(data):
        raise PlainError("an array has another size than it says")
    laid_out = [shape[axis] for axis in order]
    if not len(data):
        array = numpy.empty(laid_out, dtype)
    elif len(data) < OUT_OF_LINE or (writeable and data.readonly):
        array = numpy.frombuffer(bytearray(data), dtype).reshape(laid_out)
    else:
        array = numpy.frombuffer(data, dtype).reshape(laid_out)
    array = array.transpose([order.index(axis) for axis in range(len(shape))])
    array.flags.writeable = bool(writeable)
    return array


def _read_shape(decoder: Reader) -> list[int]:
    dimensions = decoder.size()
    if dimensions > _MOST_DIMENSIONS:
        raise PlainError("an array has too many dimensions")
    return [decoder.size() for _ in range(dimensions)]


class TensorTable:
    """The tensors of one value, grouped by shared storage. Only the used part of a storage is written."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tensors: list[tuple[Any, int]] = []
        self._storages: dict[int, int] = {}
        self._ranges: list[list[int]] = []
        self._memory: list[Any] = []

    def add(self, tensor: Any) -> int:
        """Adds a tensor and returns its number."""
        self._check(tensor)
        storage = tensor.untyped_storage()
        number = self._storages.setdefault(storage._cdata, len(self._memory))
        if number == len(self._memory):
            self._memory.append(storage)
            self._ranges.append([storage.nbytes(), 0])
        if tensor.numel():
            size = tensor.element_size()
            first = tensor.storage_offset()
            last = first + _reach(tensor.shape, tensor.stride())
            reach = self._ranges[number]
            reach[0] = min(reach[0], first * size // _STORAGE_STEP * _STORAGE_STEP)
            reach[1] = max(reach[1], (last + 1) * size)
        self._tensors.append((tensor, number))
        return len(self._tensors) - 1

    def finish(self, out: bytearray, buffers: list[memoryview]) -> None:
        """Writes the table and appends the memory to the buffers."""
        _write_numbers(out, len(self._tensors), len(self._memory))
        for storage, (low, high) in zip(self._memory, self._ranges, strict=True):
            _write_numbers(out, len(buffers))
            buffers.append(self._bytes(storage, low, max(low, high)))
        for tensor, number in self._tensors:
            name = str(tensor.dtype).removeprefix("torch.").encode()
            _write_numbers(out, len(name))
            out += name
            offset = 0
            if tensor.numel():
                offset = tensor.storage_offset() - self._ranges[number][0] // tensor.element_size()
            _write_numbers(out, number, offset, int(tensor.requires_grad), tensor.dim())
            _write_numbers(out, *tensor.shape, *tensor.stride())

    def _check(self, tensor: Any) -> None:
        why = ""
        if tensor.layout is not self._torch.strided or tensor.is_quantized:
            why = "it is sparse or quantised"
        elif tensor.device.type not in ("cpu", "cuda"):
            why = f"it is on device {tensor.device}"
        elif tensor.is_conj() or tensor.is_neg():
            why = "it is a conjugated or negated view; call .resolve_conj().resolve_neg() on it"
        elif tensor.__dict__ or tensor._backward_hooks:
            why = "it has attributes or hooks of its own"
        elif str(tensor.dtype).removeprefix("torch.") not in _TENSOR_DTYPES:
            why = f"its dtype is {tensor.dtype}"
        if why:
            raise NotPlain("torch.Tensor", why)

    def _bytes(self, storage: Any, low: int, high: int) -> memoryview:
        """Returns a part of a storage, copied only if it is on a device."""
        if storage.device.type == "cpu":
            return storage_bytes(storage)[low:high]
        part = self._torch.empty(0, dtype=self._torch.uint8, device=storage.device)
        part = part.set_(storage, low, (high - low,), (1,)).cpu()
        return storage_bytes(part.untyped_storage())


def read_tensors(decoder: Reader, count: int) -> list[Any]:
    """Reads the table that `TensorTable.finish` wrote."""
    torch = _needed("torch", "a torch tensor")
    storages = []
    for _ in range(decoder.size()):
        data = decoder.buffers[decoder.size()]
        if not len(data):
            storages.append(torch.UntypedStorage(0))
            continue
        memory = bytearray(data) if data.readonly else data
        storages.append(torch.frombuffer(memory, dtype=torch.uint8).untyped_storage())
    return [_read_tensor(decoder, torch, storages) for _ in range(count)]


def _read_tensor(decoder: Reader, torch: ModuleType, storages: list[Any]) -> Any:
    name = decoder.text()
    if name not in _TENSOR_DTYPES or not hasattr(torch, name):
        raise PlainError(f"{name!r} is no type of tensor that is accepted here")
    storage = storages[decoder.size()]
    offset, requires_grad = decoder.size(), decoder.size()
    shape = _read_shape(decoder)
    strides = [decoder.size() for _ in shape]
    tensor = torch.empty(0, dtype=getattr(torch, name))
    within = storage.nbytes() // tensor.element_size()
    # `set_` would enlarge the storage for a tensor that reaches beyond it.
    if math.prod(shape) and offset + _reach(shape, strides) >= within:
        raise PlainError("a tensor reaches beyond its memory")
    tensor = tensor.set_(storage, offset if math.prod(shape) else 0, shape, strides)
    return tensor.requires_grad_() if requires_grad else tensor


def _reach(shape: Any, strides: Any) -> int:
    """Returns the distance, in elements, from a tensor's first element to its last."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _needed(module: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise PlainError(
            f"the value holds {what}, and {module} is not installed here: pip install {module}"
        ) from None

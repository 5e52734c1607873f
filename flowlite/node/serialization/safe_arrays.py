"""Numpy arrays and scalars and torch tensors in the plain form: a few numbers, and the raw memory.

Numpy and torch are only used when one of their values is met, so neither is required otherwise.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .pickling import storage_bytes
from .safe_base import OUT_OF_LINE, BlockReader, BlockWriter, NotPlain, PlainError, type_name

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


class ArrayWriter:
    """Makes the documents of one value's arrays and tensors. Only the used part of a tensor's memory is written."""

    def __init__(self, blocks: BlockWriter, remember: Callable[[Any], None]) -> None:
        self._blocks = blocks
        self._remember = remember
        self._storages: dict[int, int] = {}
        self._ranges: list[list[int]] = []
        self._held: list[Any] = []

    def write(self, value: Any) -> dict[str, Any]:
        """Returns the document of a value of numpy or torch. Raises `NotPlain` for any other."""
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and type(value) is getattr(numpy, "ndarray", None):
            self._remember(value)
            return {"array": self._array(value, numpy)}
        if numpy is not None and isinstance(value, getattr(numpy, "generic", ())):
            return {"scalar": self._scalar(value, numpy)}
        if torch is not None and type(value) is getattr(torch, "Tensor", None):
            self._remember(value)
            return {"tensor": self._tensor(value, torch)}
        raise NotPlain(type_name(value))

    def memory(self) -> list[list[Any]]:
        """Adds the memory of all tensors to the blocks. Returns each one's block, and where in the memory it begins."""
        return [
            [self._blocks.add(_part_of(storage, low, max(low, high))), low]
            for storage, (low, high) in zip(self._held, self._ranges, strict=True)
        ]

    def _scalar(self, value: Any, numpy: ModuleType) -> dict[str, Any]:
        # Several types can share a name (longlong and int64), and only one of them is restored.
        if (
            value.dtype.kind not in _SCALAR_KINDS
            or type(value) is not numpy.dtype(value.dtype.str).type
        ):
            raise NotPlain(type_name(value))
        return {"dtype": _dtype_of(value, numpy), "data": self._blocks.add(value.tobytes())}

    def _array(self, array: Any, numpy: ModuleType) -> dict[str, Any]:
        dtype = _dtype_of(array, numpy)
        # The axes from the longest stride to the shortest: in this order most arrays (Fortran order, transposed) are
        # contiguous.
        order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        laid_out = array.transpose(order)
        if not laid_out.flags.c_contiguous:
            order = list(range(array.ndim))
            laid_out = numpy.ascontiguousarray(array)
        data = laid_out.reshape(-1).view(numpy.uint8).data if array.size else b""
        return {
            "dtype": dtype,
            "shape": array.shape,
            "axes": order,
            "writeable": bool(array.flags.writeable),
            "data": self._blocks.add(data),
        }

    def _tensor(self, tensor: Any, torch: ModuleType) -> dict[str, Any]:
        _check_tensor(tensor, torch)
        storage = tensor.untyped_storage()
        number = self._storages.setdefault(storage._cdata, len(self._held))
        if number == len(self._held):
            self._held.append(storage)
            self._ranges.append([storage.nbytes(), 0])
        if tensor.numel():
            size = tensor.element_size()
            first = tensor.storage_offset()
            last = first + _reach(tensor.shape, tensor.stride())
            used = self._ranges[number]
            used[0] = min(used[0], first * size // _STORAGE_STEP * _STORAGE_STEP)
            used[1] = max(used[1], (last + 1) * size)
        return {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "memory": number,
            "offset": tensor.storage_offset(),
            "shape": tensor.shape,
            "strides": tensor.stride(),
            "requires_grad": tensor.requires_grad,
        }


class ArrayReader:
    """Reads what an `ArrayWriter` wrote."""

    def __init__(
        self, blocks: BlockReader, memory: list[list[Any]], remember: Callable[[Any], Any]
    ) -> None:
        self._blocks = blocks
        self._memory = memory
        self._remember = remember
        self._storages: dict[int, Any] = {}

    def read(self, tag: str, data: dict[str, Any]) -> Any:
        """Reads one value of numpy or torch."""
        if tag == "array":
            return self._remember(self._array(data, _needed("numpy", "a numpy array")))
        if tag == "scalar":
            return self._scalar(data, _needed("numpy", "a numpy number"))
        if tag == "tensor":
            return self._remember(self._tensor(data, _needed("torch", "a torch tensor")))
        raise PlainError("unknown kind of value")

    def _scalar(self, found: dict[str, Any], numpy: ModuleType) -> Any:
        dtype = _accepted_dtype(found["dtype"], numpy)
        if dtype.kind not in _SCALAR_KINDS:
            raise PlainError("unknown kind of number")
        (value,) = numpy.frombuffer(bytes(self._blocks.get(found["data"])), dtype)
        return value

    def _array(self, found: dict[str, Any], numpy: ModuleType) -> Any:
        dtype = _accepted_dtype(found["dtype"], numpy)
        shape, order = _shape(found["shape"]), found["axes"]
        if sorted(order) != list(range(len(shape))):
            raise PlainError("the axes of an array are damaged")
        data, writeable = self._blocks.get(found["data"]), bool(found["writeable"])
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
        array.flags.writeable = writeable
        return array

    def _tensor(self, found: dict[str, Any], torch: ModuleType) -> Any:
        name = found["dtype"]
        if name not in _TENSOR_DTYPES or not hasattr(torch, name):
            raise PlainError(f"{name!r} is no type of tensor that is accepted here")
        storage, low = self._storage(found["memory"], torch), self._memory[found["memory"]][1]
        shape, strides = _shape(found["shape"]), _shape(found["strides"])
        tensor = torch.empty(0, dtype=getattr(torch, name))
        if math.prod(shape):
            offset = found["offset"] - low // tensor.element_size()
            within = storage.nbytes() // tensor.element_size()
            # `set_` would enlarge the storage for a tensor that reaches beyond it.
            if offset < 0 or offset + _reach(shape, strides) >= within:
                raise PlainError("a tensor reaches beyond its memory")
        else:
            offset = 0
        tensor = tensor.set_(storage, offset, shape, strides)
        return tensor.requires_grad_() if found["requires_grad"] else tensor

    def _storage(self, number: int, torch: ModuleType) -> Any:
        """Returns memory that tensors share, made once."""
        if number not in self._storages:
            data = self._blocks.get(self._memory[number][0])
            if len(data):
                memory = bytearray(data) if data.readonly else data
                storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
            else:
                storage = torch.UntypedStorage(0)
            self._storages[number] = storage
        return self._storages[number]


def _dtype_of(value: Any, numpy: ModuleType) -> str:
    """Returns the name of the value's dtype. Raises `NotPlain` if the name does not say all of it."""
    dtype = value.dtype
    name = str(dtype.str)
    if (
        not _DTYPE.fullmatch(name)
        or not dtype.itemsize
        or dtype.metadata
        or numpy.dtype(name) != dtype
    ):
        raise NotPlain(type_name(value), f"its dtype is {dtype}")
    return name


def _accepted_dtype(name: str, numpy: ModuleType) -> Any:
    """Returns the dtype of that name. Raises `PlainError` if it could hold objects."""
    if not _DTYPE.fullmatch(name):
        raise PlainError(f"{name!r} is no type of array that is accepted")
    dtype = numpy.dtype(name)
    if dtype.hasobject or not dtype.itemsize:
        raise PlainError(f"{name!r} is no type of array that is accepted")
    return dtype


def _shape(numbers: list[int]) -> list[int]:
    """Returns the sizes or strides of the dimensions, checked."""
    if len(numbers) > _MOST_DIMENSIONS:
        raise PlainError("an array has too many dimensions")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise PlainError("the shape of an array is damaged")
    return numbers


def _check_tensor(tensor: Any, torch: ModuleType) -> None:
    """Raises `NotPlain` for a tensor that would be read back as another one."""
    why = ""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        why = "it is sparse, quantised or nested"
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


def _part_of(storage: Any, low: int, high: int) -> memoryview:
    """Returns a part of a storage, copied only if it is on a device."""
    if storage.device.type == "cpu":
        return storage_bytes(storage)[low:high]
    torch = sys.modules["torch"]
    part = torch.empty(0, dtype=torch.uint8, device=storage.device)
    part = part.set_(storage, low, (high - low,), (1,)).cpu()
    return storage_bytes(part.untyped_storage())


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

"""The plain form: data that cannot execute code.

It holds numbers, strings, bytes, containers of them, numpy arrays and torch tensors. Only exactly these types are
supported. A subclass (a namedtuple, an OrderedDict, an enum) is `NotPlain`, since it would be read back as another
type. Objects that occur twice are read back as one object, including cycles through lists and dicts.

The structure is a string of tagged values. Lengths are variable-length integers (seven bits a byte, least significant
first). Rows of items (of lists, tuples, sets, and the keys and values of dicts) that are all floats, all int64 or all
strings are packed, so that a million numbers do not take a million steps. Blocks of `OUT_OF_LINE` bytes and more are
views, listed beside the structure.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import safe_standard
from .safe_base import OUT_OF_LINE, NotPlain, PlainError, type_name, write_size

if TYPE_CHECKING:
    from .safe_arrays import TensorTable

__all__ = ["NotPlain", "Plain", "PlainError", "decode", "encode", "type_name"]

# Deep enough for real data, and far from the interpreter's recursion limit on both sides.
MAX_DEPTH = 150
_PACK_FROM = 8
# Packing does not preserve that two strings are one object; beyond this size that could multiply memory.
_PACK_TEXT_UP_TO = 1 << 24
_SMALL_INT_BITS = 63
_DOUBLE = struct.Struct("<d")


class Plain(NamedTuple):
    """An encoded value: a small structure, and the large blocks it refers to (views, not copies)."""

    structure: bytes
    buffers: list[memoryview]


def encode(value: Any) -> Plain:
    """Encodes a value. Raises `NotPlain`."""
    encoder = Encoder()
    encoder.value(value)
    head = bytearray()
    if encoder.tensors is None:
        write_size(head, 0)
    else:
        encoder.tensors.finish(head, encoder.buffers)
    return Plain(bytes(head + encoder.out), encoder.buffers)


def decode(structure: bytes | memoryview, buffers: Sequence[memoryview] = ()) -> Any:
    """Decodes a value. Raises `PlainError`. Runs no code chosen by the data; arrays refer to the given buffers."""
    try:
        decoder = Decoder(bytes(structure), buffers)
        decoder.head()
        value = decoder.value()
        if decoder.position != len(decoder.data):
            raise PlainError("there is more data than the value")
    except PlainError:
        raise
    except Exception as error:
        # All errors that damaged data can cause (out of range, not UTF-8, unhashable keys ...) become one error for the
        # caller.
        raise PlainError(f"the data is damaged: {type(error).__name__}: {error}") from None
    return value


class Encoder:
    """Writes one value."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.buffers: list[memoryview] = []
        self.tensors: TensorTable | None = None
        self._memo: dict[int, int] = {}
        self._open: set[int] = set()
        self._depth = 0
        self._standard = safe_standard.types()

    def value(self, value: Any) -> None:
        """Writes one value of any kind."""
        seen = self._memo.get(id(value))
        if seen is not None:
            self.out += b"@"
            write_size(self.out, seen)
            return
        write = _WRITERS.get(type(value))
        if write is not None:
            write(self, value)
        elif type(value) in self._standard:
            name, to_text = self._standard[type(value)]
            self.text(b"X" + name, to_text(value))
        else:
            from . import safe_arrays

            safe_arrays.write(self, value)

    def remember(self, value: Any) -> None:
        """Assigns the value the next number, by which `@` refers to it."""
        self._memo[id(value)] = len(self._memo)

    def text(self, tag: bytes, text: str) -> None:
        """Writes a tag and a string."""
        raw = text.encode("utf-8", "surrogatepass")
        self.out += tag
        write_size(self.out, len(raw))
        self.out += raw

    def block(self, data: Any) -> None:
        """Writes bytes: in line if few, else as a reference to a buffer."""
        view = memoryview(data).cast("B")
        if len(view) < OUT_OF_LINE:
            self.out += b"i"
            write_size(self.out, len(view))
            self.out += view
        else:
            self.out += b"o"
            write_size(self.out, len(self.buffers))
            self.buffers.append(view)

    def row(self, items: Sequence[Any], step: Callable[[int], str]) -> None:
        """Writes items in sequence, packed if all are of one simple type."""
        write_size(self.out, len(items))
        if not items or (len(items) >= _PACK_FROM and self._pack(items)):
            return
        self.out += b"*"
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotPlain(type_name(items[0]), f"it is nested more than {MAX_DEPTH} levels deep")
        index = 0
        try:
            for index, item in enumerate(items):  # noqa: B007
                self.value(item)
        except NotPlain as error:
            error.inside(step(index))
            raise
        self._depth -= 1

    def _pack(self, items: Sequence[Any]) -> bool:
        kinds = set(map(type, items))
        if kinds == {float}:
            self._packed(b"d", array("d", items))
        elif kinds == {int}:
            try:
                numbers = array("q", items)
            except OverflowError:
                return False
            self._packed(b"q", numbers)
        elif kinds == {str} and sum(map(len, items)) <= _PACK_TEXT_UP_TO:
            raws = [item.encode("utf-8", "surrogatepass") for item in items]
            self._packed(b"u", array("q", map(len, raws)))
            self.block(b"".join(raws))
        else:
            return False
        return True

    def _packed(self, tag: bytes, numbers: array[Any]) -> None:
        if sys.byteorder == "big":
            numbers.byteswap()
        self.out += tag
        self.block(numbers)

    def _whole(self, tag: bytes, value: Any, items: Sequence[Any]) -> None:
        """Writes a container that can only be created after its items (tuple, frozenset)."""
        if id(value) in self._open:
            raise NotPlain(type_name(value), "it contains itself")
        self._open.add(id(value))
        self.out += tag
        self.row(items, _by_index)
        self._open.discard(id(value))
        self.remember(value)

    def _growing(self, tag: bytes, value: Any) -> None:
        """Begins a container that can be referred to while it is filled."""
        self.remember(value)
        self.out += tag


class Decoder:
    """Reads one value. Every length is checked against the available data."""

    def __init__(self, data: bytes, buffers: Sequence[memoryview]) -> None:
        self.data = data
        self.position = 0
        self.buffers = buffers
        self.tensors: list[Any] = []
        self._memo: list[Any] = []
        self._depth = 0

    def head(self) -> None:
        """Reads the table of tensors that precedes the value."""
        count = self.size()
        if count:
            from . import safe_arrays

            self.tensors = safe_arrays.read_tensors(self, count)

    def value(self) -> Any:
        """Reads one value of any kind."""
        tag = self.data[self.position]
        self.position += 1
        read = _READERS.get(tag)
        if read is not None:
            return read(self)
        from . import safe_arrays

        return safe_arrays.read(self, tag)

    def take(self, length: int) -> bytes:
        """Returns the next bytes of the structure."""
        end = self.position + length
        if end > len(self.data):
            raise PlainError("the data is cut off")
        raw = self.data[self.position : end]
        self.position = end
        return raw

    def size(self) -> int:
        """Reads a non-negative integer of at most 63 bits."""
        byte = self.data[self.position]
        self.position += 1
        number, shift = byte & 0x7F, 7
        while byte >= 0x80:
            if shift >= _SMALL_INT_BITS:
                raise PlainError("a number is too large")
            byte = self.data[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
        return number

    def text(self) -> str:
        return str(self.take(self.size()), "utf-8", "surrogatepass")

    def block(self) -> memoryview:
        """Reads bytes, in line or from a buffer."""
        tag = self.take(1)
        if tag == b"i":
            return memoryview(self.take(self.size()))
        if tag == b"o":
            return memoryview(self.buffers[self.size()]).cast("B")
        raise PlainError("a block of bytes is missing")

    def row(self) -> Iterable[Any]:
        """Reads the items of a container."""
        count = self.size()
        if not count:
            return ()
        tag = self.take(1)
        if tag == b"*":
            return self._items(count)
        if tag == b"u":
            return self._strings(self._numbers("q", count))
        if tag in (b"d", b"q"):
            return self._numbers(tag.decode(), count)
        raise PlainError("unknown kind of row")

    def remember(self, value: Any) -> Any:
        self._memo.append(value)
        return value

    def remembered(self) -> Any:
        return self._memo[self.size()]

    def _items(self, count: int) -> list[Any]:
        if count > len(self.data) - self.position:
            raise PlainError("the data is cut off")
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise PlainError("it is nested too deeply")
        items = [self.value() for _ in range(count)]
        self._depth -= 1
        return items

    def _numbers(self, code: str, count: int) -> list[Any]:
        numbers = array(code)
        numbers.frombytes(self.block())
        if sys.byteorder == "big":
            numbers.byteswap()
        if len(numbers) != count:
            raise PlainError("a row has another length than it says")
        return numbers.tolist()

    def _strings(self, lengths: list[int]) -> list[str]:
        raw = bytes(self.block())
        items, start = [], 0
        for length in lengths:
            if length < 0:
                raise PlainError("a string has a negative length")
            items.append(raw[start : start + length].decode("utf-8", "surrogatepass"))
            start += length
        if start != len(raw):
            raise PlainError("a row of strings has another length than it says")
        return items


def _by_index(index: int) -> str:
    return f"[{index}]"


def _write_int(encoder: Encoder, value: int) -> None:
    encoder.out += b"I"
    raw = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    write_size(encoder.out, len(raw))
    encoder.out += raw


def _write_float(encoder: Encoder, value: float) -> None:
    encoder.out += b"D" + _DOUBLE.pack(value)


def _write_complex(encoder: Encoder, value: complex) -> None:
    encoder.out += b"C" + _DOUBLE.pack(value.real) + _DOUBLE.pack(value.imag)


def _write_str(encoder: Encoder, value: str) -> None:
    if len(value) >= OUT_OF_LINE:
        encoder.remember(value)
        encoder.out += b"W"
        encoder.block(value.encode("utf-8", "surrogatepass"))
    else:
        encoder.text(b"U", value)


def _write_bytes(encoder: Encoder, value: bytes) -> None:
    encoder.remember(value)
    encoder.out += b"B"
    encoder.block(value)


def _write_bytearray(encoder: Encoder, value: bytearray) -> None:
    encoder._growing(b"Y", value)
    encoder.block(value)


def _write_list(encoder: Encoder, value: list[Any]) -> None:
    encoder._growing(b"L", value)
    encoder.row(value, _by_index)


def _write_set(encoder: Encoder, value: set[Any]) -> None:
    encoder._growing(b"S", value)
    encoder.row(list(value), lambda _: " (an item of the set)")


def _write_dict(encoder: Encoder, value: dict[Any, Any]) -> None:
    encoder._growing(b"M", value)
    keys = list(value)
    encoder.row(keys, lambda index: f" (key {_short(keys[index])})")
    encoder.row(list(value.values()), lambda index: f"[{_short(keys[index])}]")


def _short(key: Any) -> str:
    text = repr(key) if type(key) in (str, int, bytes, tuple, float) else type_name(key)
    return text if len(text) <= 60 else text[:57] + "..."


_WRITERS: dict[type, Callable[[Encoder, Any], None]] = {
    type(None): lambda encoder, _: encoder.out.extend(b"N"),
    bool: lambda encoder, value: encoder.out.extend(b"T" if value else b"F"),
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytearray,
    list: _write_list,
    tuple: lambda encoder, value: encoder._whole(b"P", value, value),
    set: _write_set,
    frozenset: lambda encoder, value: encoder._whole(b"Z", value, list(value)),
    dict: _write_dict,
}


def _read_double(decoder: Decoder) -> float:
    (number,) = _DOUBLE.unpack_from(decoder.data, decoder.position)
    decoder.position += 8
    return float(number)


def _read_list(decoder: Decoder) -> list[Any]:
    items: list[Any] = decoder.remember([])
    items.extend(decoder.row())
    return items


def _read_set(decoder: Decoder) -> set[Any]:
    items: set[Any] = decoder.remember(set())
    items.update(decoder.row())
    return items


def _read_dict(decoder: Decoder) -> dict[Any, Any]:
    items: dict[Any, Any] = decoder.remember({})
    keys, values = list(decoder.row()), list(decoder.row())
    items.update(zip(keys, values, strict=True))
    return items


_READERS: dict[int, Callable[[Decoder], Any]] = {
    ord("N"): lambda decoder: None,
    ord("T"): lambda decoder: True,
    ord("F"): lambda decoder: False,
    ord("I"): lambda decoder: int.from_bytes(decoder.take(decoder.size()), "little", signed=True),
    ord("D"): _read_double,
    ord("C"): lambda decoder: complex(_read_double(decoder), _read_double(decoder)),
    ord("U"): lambda decoder: decoder.text(),
    ord("W"): lambda decoder: decoder.remember(str(decoder.block(), "utf-8", "surrogatepass")),
    ord("B"): lambda decoder: decoder.remember(bytes(decoder.block())),
    ord("Y"): lambda decoder: decoder.remember(bytearray(decoder.block())),
    ord("L"): _read_list,
    ord("P"): lambda decoder: decoder.remember(tuple(decoder.row())),
    ord("S"): _read_set,
    ord("Z"): lambda decoder: decoder.remember(frozenset(decoder.row())),
    ord("M"): _read_dict,
    ord("@"): Decoder.remembered,
    ord("X"): lambda decoder: safe_standard.read(decoder.take(1), decoder.text()),
}

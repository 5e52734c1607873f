"""The plain form: data that cannot execute code.

It holds numbers, strings, bytes, containers of them, numpy arrays and torch tensors. Only exactly these types are
supported. A subclass (a namedtuple, an OrderedDict, an enum) is `NotPlain`, since it would be read back as another
type. Objects that occur twice are read back as one object, including cycles through lists and dicts.

The structure is a JSON document; bytes, arrays and rows of floats are raw memory beside it. null, true, false, strings,
integers and arrays of the document stand for themselves (an array is a list). Everything else is an object with one
name, which is the type of the value: {"tuple": [...]}. Containers, arrays and long strings are counted in the order in
which the reader meets them, and {"same": 3} is the fourth of them once more. In place of the items of a container there
may be {"doubles": ...}, raw memory, or {"records": [keys, columns]}, dicts that have the same keys.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import count
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from . import safe_standard
from .safe_base import OUT_OF_LINE, BlockReader, BlockWriter, NotPlain, PlainError, type_name

if TYPE_CHECKING:
    from .safe_arrays import ArrayReader, ArrayWriter

__all__ = ["NotPlain", "Plain", "PlainError", "decode", "encode", "type_name"]

# Deep enough for real data, and far from the interpreter's recursion limit on both sides.
MAX_DEPTH = 150
# Python refuses to read decimal numbers of thousands of digits.
_DECIMAL_BITS = 64
# Types of a JSON document that are values as they are.
_THEMSELVES = frozenset({int, str, bool, type(None)})


class Plain(NamedTuple):
    """An encoded value: the document, and the raw memory it refers to (views, not copies)."""

    structure: bytes
    buffers: list[memoryview]


def encode(value: Any) -> Plain:
    """Encodes a value. Raises `NotPlain`."""
    encoder = _Encoder()
    tree = encoder.value(value)
    document = {"value": tree, "memory": encoder.arrays.memory() if encoder.arrays else []}
    text = json.dumps(document, ensure_ascii=False, check_circular=False, separators=(",", ":"))
    return Plain(text.encode("utf-8", "surrogatepass"), encoder.blocks.buffers())


def decode(structure: bytes | memoryview, buffers: Sequence[memoryview] = ()) -> Any:
    """Decodes a value. Raises `PlainError`. Runs no code chosen by the data; arrays refer to the given buffers."""
    try:
        document = json.loads(str(structure, "utf-8", "surrogatepass"))
        return _Decoder(document["memory"], buffers).value(document["value"])
    except PlainError:
        raise
    except RecursionError:
        raise PlainError("it is nested too deeply") from None
    except Exception as error:
        # All errors that damaged data can cause (out of range, not UTF-8, unhashable keys ...) become one error for the
        # caller.
        raise PlainError(f"the data is damaged: {type(error).__name__}: {error}") from None


class _Encoder:
    """Makes the document of one value."""

    def __init__(self) -> None:
        self.blocks = BlockWriter()
        self.arrays: ArrayWriter | None = None
        self._seen: dict[int, int] = {}
        self._open: set[int] = set()
        self._depth = 0
        self._standard = safe_standard.types()

    def value(self, value: Any) -> Any:
        """Returns the document of a value of any kind."""
        seen = self._seen.get(id(value))
        if seen is not None:
            return {"same": seen}
        kind = type(value)
        write = _WRITERS.get(kind)
        if write is not None:
            return write(self, value)
        if kind in self._standard:
            name, write_standard = self._standard[kind]
            return {name: write_standard(value)}
        if self.arrays is None:
            from . import safe_arrays

            self.arrays = safe_arrays.ArrayWriter(self.blocks, self.remember)
        return self.arrays.write(value)

    def remember(self, value: Any) -> None:
        """Assigns the value the next number, by which "same" refers to it."""
        self._seen[id(value)] = len(self._seen)

    def row(self, items: Sequence[Any], step: Callable[[int], str]) -> Any:
        """Returns the document of items in sequence.

        Floats become raw memory, simple items stay as they are, and dicts with the same keys become columns.
        """
        kinds = set(map(type, items))
        if kinds == {float}:
            return {"doubles": self.blocks.add(_little(array("d", items)))}
        if _are_themselves(kinds, items):
            return list(items)
        if kinds == {dict} and (keys := _common_keys(items)) and self._are_new(items):
            return {"records": self._records(items, keys, step)}
        self._deeper(1, items)
        tree = []
        try:
            for item in items:
                tree.append(self.value(item))
        except NotPlain as error:
            error.inside(step(len(tree)))
            raise
        self._depth -= 1
        return tree

    def _records(
        self, rows: Sequence[dict[Any, Any]], keys: Sequence[str], step: Callable[[int], str]
    ) -> list[Any]:
        """Returns the document of dicts that have these keys, in a seventh of the time of one after the other."""
        self._seen.update(zip(map(id, rows), count(len(self._seen)), strict=False))
        # They are nested as deeply as one after the other.
        self._deeper(2, rows)
        names = self.row(keys, lambda index: f" (key {_short(keys[index])})")
        columns = []
        for key in keys:
            inner = f"[{_short(key)}]"
            column = list(map(itemgetter(key), rows))
            columns.append(self.row(column, lambda index, inner=inner: f"{step(index)}{inner}"))  # type: ignore[misc]
        self._depth -= 2
        return [names, columns]

    def _are_new(self, rows: Sequence[dict[Any, Any]]) -> bool:
        """Whether these were not met before, and are different objects."""
        ids = set(map(id, rows))
        return len(ids) == len(rows) and self._seen.keys().isdisjoint(ids)

    def _deeper(self, levels: int, items: Sequence[Any]) -> None:
        self._depth += levels
        if self._depth > MAX_DEPTH:
            raise NotPlain(type_name(items[0]), f"it is nested more than {MAX_DEPTH} levels deep")

    def block(self, value: Any, data: Any) -> dict[str, Any]:
        """Returns the document of a value that is raw memory."""
        self.remember(value)
        return {type(value).__name__: self.blocks.add(data)}

    def growing(self, value: Any) -> Any:
        """Returns the document of a container that can be referred to while it is filled (list, set, dict)."""
        self.remember(value)
        if isinstance(value, list):
            row = self.row(value, _by_index)
            return row if isinstance(row, list) else {"list": row}
        if isinstance(value, set):
            return {"set": self.row(list(value), _by_index)}
        keys = list(value)
        return {
            "dict": [
                self.row(keys, lambda index: f" (key {_short(keys[index])})"),
                self.row(list(value.values()), lambda index: f"[{_short(keys[index])}]"),
            ]
        }

    def whole(self, value: Any) -> dict[str, Any]:
        """Returns the document of a container that can only be created after its items (tuple, frozenset)."""
        if id(value) in self._open:
            raise NotPlain(type_name(value), "it contains itself")
        self._open.add(id(value))
        row = self.row(list(value), _by_index)
        self._open.discard(id(value))
        self.remember(value)
        return {type(value).__name__: row}


class _Decoder:
    """Reads one document. Every length is checked against the available data."""

    def __init__(self, memory: list[Any], buffers: Sequence[memoryview]) -> None:
        self.blocks = BlockReader(buffers)
        self.seen: list[Any] = []
        self._memory = memory
        self._arrays: ArrayReader | None = None

    def value(self, tree: Any) -> Any:
        """Reads a value of any kind."""
        if isinstance(tree, list):
            return self.fill([], tree)
        if not isinstance(tree, dict):
            if isinstance(tree, float):
                raise PlainError("a number is damaged")
            return tree
        ((tag, data),) = tree.items()
        read = _READERS.get(tag)
        if read is not None:
            return read(self, data)
        read_standard = safe_standard.reader(tag)
        if read_standard is not None:
            return read_standard(data)
        if self._arrays is None:
            from . import safe_arrays

            self._arrays = safe_arrays.ArrayReader(self.blocks, self._memory, self.remember)
        return self._arrays.read(tag, data)

    def remember(self, value: Any) -> Any:
        """Assigns the value the next number, and returns it."""
        self.seen.append(value)
        return value

    def fill(self, container: Any, tree: Any) -> Any:
        """Fills a list or set that its own items may refer to."""
        self.remember(container)
        (container.extend if isinstance(container, list) else container.update)(self.row(tree))
        return container

    def mapping(self, tree: Any) -> dict[Any, Any]:
        """Reads a dict."""
        found: dict[Any, Any] = self.remember({})
        keys, values = map(self.row, tree)
        found.update(zip(keys, values, strict=True))
        return found

    def row(self, tree: Any) -> list[Any]:
        """Reads the items of a container."""
        if isinstance(tree, dict):
            if "records" in tree:
                return self._records(*tree["records"])
            return _little(array("d", self.blocks.get(tree["doubles"]).tobytes())).tolist()
        if not isinstance(tree, list):
            raise PlainError("the items of a container are missing")
        if set(map(type, tree)) <= _THEMSELVES:
            return tree
        return [self.value(item) for item in tree]

    def _records(self, names: Any, columns: list[Any]) -> list[dict[str, Any]]:
        """Reads dicts that have the same keys."""
        found: list[dict[str, Any]] = [{} for _ in range(self._length(columns[0]))]
        self.seen += found
        keys = self.row(names)
        values = [self.row(column) for column in columns]
        for row, items in zip(found, zip(*values, strict=True), strict=True):
            row.update(zip(keys, items, strict=True))
        return found

    def _length(self, tree: Any) -> int:
        """Returns how many items a row has that is not read yet, by the data that is there."""
        if isinstance(tree, list):
            return len(tree)
        if "records" in tree:
            return self._length(tree["records"][1][0])
        return len(self.blocks.get(tree["doubles"])) // array("d").itemsize


def _common_keys(rows: Sequence[dict[Any, Any]]) -> list[str] | None:
    """Returns the keys that all these dicts have, in the same order; None unless they are the same strings."""
    keys = list(rows[0])
    if len(rows) < 2 or set(map(type, keys)) != {str}:
        return None
    for row in rows:
        # Mostly they are the same objects. Equal ones may be of another type.
        if len(row) != len(keys) or not (
            all(map(is_, row, keys)) or (list(row) == keys and set(map(type, row)) == {str})
        ):
            return None
    return keys


def _are_themselves(kinds: set[type], items: Sequence[Any]) -> bool:
    """Whether the items stand for themselves in JSON."""
    if kinds == {int}:
        longest: int = max(max(items).bit_length(), min(items).bit_length())
        return longest < _DECIMAL_BITS
    if kinds == {str}:
        return max(map(len, items)) < OUT_OF_LINE
    return kinds <= {bool, type(None)}


def _little(numbers: array[float]) -> array[float]:
    """Turns the numbers around where this machine is big endian."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _by_index(index: int) -> str:
    return f"[{index}]"


def _short(key: Any) -> str:
    text = repr(key) if type(key) in (str, int, bytes, tuple, float) else type_name(key)
    return text if len(text) <= 60 else text[:57] + "..."


def _write_int(_: _Encoder, value: int) -> Any:
    return value if value.bit_length() < _DECIMAL_BITS else {"int": hex(value)}


def _write_str(encoder: _Encoder, value: str) -> Any:
    if len(value) < OUT_OF_LINE:
        return value
    return encoder.block(value, value.encode("utf-8", "surrogatepass"))


def _write_floats(_: _Encoder, value: Any) -> dict[str, str]:
    """Returns a float or complex number by its bytes, since JSON has neither infinity nor the kinds of NaN."""
    numbers = [value.real, value.imag] if isinstance(value, complex) else [value]
    return {type(value).__name__: struct.pack(f"<{len(numbers)}d", *numbers).hex()}


_WRITERS: dict[type, Callable[[_Encoder, Any], Any]] = {
    type(None): lambda _, value: value,
    bool: lambda _, value: value,
    int: _write_int,
    float: _write_floats,
    complex: _write_floats,
    str: _write_str,
    bytes: lambda encoder, value: encoder.block(value, value),
    bytearray: lambda encoder, value: encoder.block(value, value),
    range: lambda encoder, value: {
        "range": encoder.row([value.start, value.stop, value.step], _by_index)
    },
    list: _Encoder.growing,
    set: _Encoder.growing,
    dict: _Encoder.growing,
    tuple: _Encoder.whole,
    frozenset: _Encoder.whole,
}

_READERS: dict[str, Callable[[_Decoder, Any], Any]] = {
    "same": lambda decoder, number: decoder.seen[number],
    "int": lambda _, text: int(text, 16),
    "float": lambda _, text: struct.unpack("<d", bytes.fromhex(text))[0],
    "complex": lambda _, text: complex(*struct.unpack("<2d", bytes.fromhex(text))),
    "str": lambda decoder, block: decoder.remember(
        str(decoder.blocks.get(block), "utf-8", "surrogatepass")
    ),
    "bytes": lambda decoder, block: decoder.remember(bytes(decoder.blocks.get(block))),
    "bytearray": lambda decoder, block: decoder.remember(bytearray(decoder.blocks.get(block))),
    "range": lambda decoder, row: range(*decoder.row(row)),
    "list": lambda decoder, row: decoder.fill([], row),
    "set": lambda decoder, row: decoder.fill(set(), row),
    "dict": _Decoder.mapping,
    "tuple": lambda decoder, row: decoder.remember(tuple(decoder.row(row))),
    "frozenset": lambda decoder, row: decoder.remember(frozenset(decoder.row(row))),
}

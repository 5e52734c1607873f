"""What code imports and uses, read from its bytecode without running it."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import NamedTuple

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_EXTENDED_ARG = dis.EXTENDED_ARG
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_LOAD_SMALL_INT = dis.opmap.get("LOAD_SMALL_INT", -1)
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


class Import(NamedTuple):
    """One import statement: `from <dots><module> import <names>`, or `import <module>` (no names)."""

    dots: int
    module: str
    names: tuple[str, ...]

    def absolute(self, package: str) -> str:
        """The module's full name, for code in `package`; "" where the dots lead nowhere."""
        if not self.dots:
            return self.module
        parents = package.split(".") if package else []
        if self.dots > len(parents):
            return ""
        base = parents[: len(parents) - self.dots + 1]
        return ".".join([*base, self.module] if self.module else base)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and all code defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def class_bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a module and of the classes in it: what runs when it is imported, functions aside."""
    yield code
    for constant in code.co_consts:
        # A class body, unlike a function, has no fast locals of its own.
        if isinstance(constant, types.CodeType) and not constant.co_flags & 0x2:
            yield from class_bodies(constant)


def imports(code: types.CodeType) -> Iterator[Import]:
    """The imports of one code object (not of code defined in it)."""
    raw = code.co_code
    operations = raw[::2]
    at = operations.find(_IMPORT_NAME)
    while at != -1:
        name, before = _operand(raw, at)
        fromlist, before = _constant(code, raw, before)
        dots, _ = _constant(code, raw, before)
        names = tuple(fromlist) if isinstance(fromlist, tuple) else ()
        yield Import(dots if isinstance(dots, int) else 0, code.co_names[name], names)
        at = operations.find(_IMPORT_NAME, at + 1)


def all_imports(code: types.CodeType) -> Iterator[Import]:
    """The imports of the code and of all code defined in it."""
    for inner in nested(code):
        yield from imports(inner)


def global_names(code: types.CodeType) -> set[str]:
    """Names that the code, and code defined in it, looks up as globals."""
    found = set()
    for inner in nested(code):
        found |= {i.argval for i in dis.get_instructions(inner) if i.opname in _GLOBALS}
    return found


def uses_attribute(code: types.CodeType, owner: str, attribute: str) -> bool:
    """Whether `owner.attribute` is written in this code object."""
    if owner not in code.co_names or attribute not in code.co_names:
        return False
    last = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTES and instruction.argval == attribute and last == owner:
            return True
        last = instruction.argval if isinstance(instruction.argval, str) else ""
    return False


def _operand(raw: bytes, at: int) -> tuple[int, int]:
    """The operand of the instruction at word `at`, and the word before the instruction (its prefixes counted to it)."""
    operand, shift, before = raw[2 * at + 1], 8, at - 1
    while before >= 0 and raw[2 * before] == _EXTENDED_ARG:
        operand |= raw[2 * before + 1] << shift
        shift += 8
        before -= 1
    return operand, before


def _constant(code: types.CodeType, raw: bytes, at: int) -> tuple[object, int]:
    """The constant that the instruction at word `at` loads, and the word before it."""
    if at < 0:
        return None, at
    operand, before = _operand(raw, at)
    if raw[2 * at] == _LOAD_CONST:
        return code.co_consts[operand], before
    return (operand if raw[2 * at] == _LOAD_SMALL_INT else None), before

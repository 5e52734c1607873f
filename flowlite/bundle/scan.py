"""Finds what code imports and uses, from its bytecode, without running it."""

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
# The last is that of type parameters and aliases in classes, from Python 3.12 on.
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
# The methods of IPython's shell that run them.
_MAGICS = frozenset({"system", "getoutput", "run_line_magic", "run_cell_magic"})


class Import(NamedTuple):
    """One import statement: `from <dots><module> import <names>`, or `import <module>` (without names)."""

    dots: int
    module: str
    names: tuple[str, ...]

    def absolute(self, package: str) -> str:
        """The module's full name, for code in `package`; "" if the dots lead above the top-level package."""
        if not self.dots:
            return self.module
        parents = package.split(".") if package else []
        if self.dots > len(parents):
            return ""
        base = parents[: len(parents) - self.dots + 1]
        return ".".join([*base, self.module] if self.module else base)


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code object and all code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def definitions(code: types.CodeType) -> Iterator[types.CodeType]:
    """The functions and classes that a code object defines itself, those with type parameters included."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # Python 3.12 has a function around them, which runs at once.
            if constant.co_name.startswith("<generic parameters"):
                yield from definitions(constant)
            else:
                yield constant


def class_bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a module and of the classes in it, which runs when the module is imported."""
    yield code
    for inner in definitions(code):
        # 0x2 is CO_NEWLOCALS, which functions have and class bodies have not.
        if not inner.co_flags & 0x2:
            yield from class_bodies(inner)


def imports(code: types.CodeType) -> Iterator[Import]:
    """The imports of one code object, without those of nested code."""
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
    """The imports of the code object and of all code nested in it."""
    for inner in nested(code):
        yield from imports(inner)


def global_names(code: types.CodeType) -> set[str]:
    """The names that the code object, and code nested in it, look up as globals."""
    found = set()
    for inner in nested(code):
        found |= {i.argval for i in dis.get_instructions(inner) if i.opname in _GLOBALS}
    return found


def uses_attribute(code: types.CodeType, owner: str, attribute: str) -> bool:
    """Whether the code object has the expression `owner.attribute`."""
    if owner not in code.co_names or attribute not in code.co_names:
        return False
    last = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTES and instruction.argval == attribute and last == owner:
            return True
        last = instruction.argval if isinstance(instruction.argval, str) else ""
    return False


def uses_magics(code: types.CodeType) -> bool:
    """Whether the code, or code nested in it, has what IPython makes of `!command`, `x = !command` or `%magic`."""
    return any(
        "get_ipython" in inner.co_names and not _MAGICS.isdisjoint(inner.co_names)
        for inner in nested(code)
    )


def _operand(raw: bytes, at: int) -> tuple[int, int]:
    """The operand of the instruction at word `at`, and the word before it and its EXTENDED_ARG prefixes."""
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

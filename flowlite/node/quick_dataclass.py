"""`dataclass`, as in `dataclasses`, but made in an eighth of the time.

`dataclasses` compiles the source of up to six methods for each class: 0.34 to 0.42 ms for a frozen class with eight
fields (Python 3.11 to 3.13). The supervisor of a small call imports 56 such classes, and the call waits for that. Here
the methods are closures, which are compiled already. To create an instance takes 1 µs longer. What is left of the time
is the search for the fields. It is done here for classes without bases, whose annotations are texts, and by
`dataclasses` for all others.

`replace`, `fields`, `asdict` and `field` of `dataclasses` work on such classes as always. To type checkers they are the
same. Not supported: `InitVar`, `order=`, `unsafe_hash=` and `init=False` for a whole class. A class that inherits from
one of these must be one itself.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from dataclasses import FrozenInstanceError
from operator import attrgetter
from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from dataclasses import dataclass as dataclass
    from inspect import Signature
    from typing import Any
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True, kw_only=False):
        """Makes a class a dataclass. The arguments are those of `dataclasses.dataclass`."""

        def make(cls):
            own = frozenset(vars(cls))
            # `dataclasses` would make one of the signature: 2 ms, since it reads that of `object` as text.
            cls.__doc__ = cls.__doc__ or cls.__name__
            made = _with_fields(cls, slots, kw_only) or dataclasses.dataclass(
                cls, init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )
            fields = dataclasses.fields(made)
            _add_init(made, fields)
            names = [each.name for each in fields]
            if repr and "__repr__" not in own:
                made.__repr__ = _repr_of([each.name for each in fields if each.repr])
            if eq and "__eq__" not in own:
                compared = [each.name for each in fields if each.compare]
                _add_comparison(made, compared, hashable=frozen, has_hash="__hash__" in own)
            if frozen:
                _freeze(made, names)
                if slots and "__getstate__" not in own:
                    _add_state(made, names)
            return made

        return make if cls is None else make(cls)


_put = object.__setattr__

# Later versions of Python keep annotations elsewhere in a class.
_KNOWN = sys.version_info < (3, 14)


def _with_fields(cls: type, slots: bool, kw_only: bool) -> Any:
    """Gives a class its fields, as `dataclasses.dataclass` does. None if that is left to it; the class is unchanged."""
    own = vars(cls)
    annotations: Mapping[str, Any] = own.get("__annotations__", {})
    if not (_KNOWN and type(cls) is type and cls.__bases__ == (object,)) or "__slots__" in own:
        return None
    try:
        text = " ".join(annotations.values())
    except TypeError:
        return None
    if "ClassVar" in text or "InitVar" in text or "KW_ONLY" in text:
        # Such an annotation belongs to no field, or changes the fields after it.
        return None
    sample = _sample(slots, kw_only)
    fields: dict[str, Any] = {}
    for name, value in own.items():
        kind = type(value)
        if kind is dataclasses.Field and name not in annotations:
            return None
        if kind is FunctionType and "__class__" in value.__code__.co_freevars:
            # It refers to the class, which is another one with slots.
            return None
    for name in annotations:
        # Not `own[name]`: a `staticmethod` is asked for its function, as by `dataclasses`.
        value = getattr(cls, name) if name in own else dataclasses.MISSING
        field: Any = value if type(value) is dataclasses.Field else dataclasses.field(default=value)
        if field.default.__class__.__hash__ is None:
            # All instances would share it. `dataclasses` has the words for that.
            return None
        fields[name] = field
    for name, each in fields.items():
        each.name, each.type, each._field_type = name, annotations[name], sample.kind
        if each.kw_only is dataclasses.MISSING:
            each.kw_only = kw_only
        if type(own.get(name)) is dataclasses.Field:
            if each.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, each.default)
    cls.__dataclass_fields__ = fields  # type: ignore[attr-defined]
    for name, value in sample.attributes.items():
        setattr(cls, name, value)
    if "__match_args__" not in own:
        positional = (name for name, each in fields.items() if each.init and not each.kw_only)
        cls.__match_args__ = tuple(positional)  # type: ignore[misc, attr-defined, unused-ignore]
    return _with_slots(cls, tuple(fields)) if slots else cls


def _with_slots(cls: type, names: tuple[str, ...]) -> type:
    body = {
        name: value
        for name, value in vars(cls).items()
        if name not in names and name not in ("__dict__", "__weakref__")
    }
    made = type(cls.__name__, cls.__bases__, {**body, "__slots__": names})
    made.__qualname__ = cls.__qualname__
    return made


class _Sample:
    """What `dataclasses` gives to a class beside its fields, and the mark of a field: they differ between versions."""

    def __init__(self, made: Any) -> None:
        self.kind = made.__dataclass_fields__["field"]._field_type
        names = ("__dataclass_params__", "__replace__")
        self.attributes = {name: vars(made)[name] for name in names if name in vars(made)}


@functools.cache
def _sample(slots: bool, kw_only: bool) -> _Sample:
    class Sample:
        """A class with a field."""

        field: int

    how: dict[str, bool] = {"slots": slots, "kw_only": kw_only}
    return _Sample(dataclasses.dataclass(Sample, init=False, repr=False, eq=False, **how))


class _Unset:
    """Stands for the value of a field that has none yet: its factory makes it."""

    def __init__(self, factory: Callable[[], object]) -> None:
        self.factory = factory


# Of a field without a default or a factory.
_NOTHING = _Unset(object)


def _default_of(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return _Unset(field.default_factory)
    return _NOTHING if field.default is dataclasses.MISSING else field.default


def _add_init(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
    known = frozenset(each.name for each in fields if each.init)
    positional = tuple(each.name for each in fields if each.init and not each.kw_only)
    # What each field has without an argument.
    defaults = {each.name: _default_of(each) for each in fields}
    unset = {name: each for name, each in defaults.items() if name in known or each is not _NOTHING}
    required = frozenset(name for name in known if unset[name] is _NOTHING)
    all_known = len(known) == len(unset)
    has_post_init = hasattr(cls, "__post_init__")

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        fits = True
        if args:
            by_place = dict(zip(positional, args, strict=False))
            fits = len(args) <= len(positional) and given.keys().isdisjoint(by_place)
            given |= by_place
        values = unset | given
        if not (fits and len(values) == len(unset) and (all_known or given.keys() <= known)):
            _refuse(cls, positional, args, given, known, required)
        for name, value in values.items():
            if type(value) is _Unset:
                if value is _NOTHING:
                    _refuse(cls, positional, args, given, known, required)
                value = value.factory()
            _put(self, name, value)
        if has_post_init:
            self.__post_init__()

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = __init__  # type: ignore[misc]
    cls.__signature__ = _SignatureOnDemand()  # type: ignore[attr-defined]


def _refuse(
    cls: type,
    positional: tuple[str, ...],
    args: tuple[object, ...],
    given: Mapping[str, object],
    known: frozenset[str],
    required: frozenset[str],
) -> None:
    """Raises the TypeError that Python raises for arguments that do not fit."""
    what = f"{cls.__qualname__}.__init__()"
    if unknown := [name for name in given if name not in known]:
        raise TypeError(f"{what} got an unexpected keyword argument {unknown[0]!r}")
    if len(args) > len(positional):
        raise TypeError(
            f"{what} takes {len(positional)} positional arguments but {len(args)} were given"
        )
    if lacking := sorted(required - given.keys()):
        raise TypeError(f"{what} missing required arguments: {', '.join(lacking)}")
    raise TypeError(f"{what} got multiple values for an argument")


class _SignatureOnDemand:
    """The `__signature__` of a class, for `help()` and `inspect`, which is made when it is asked for."""

    def __get__(self, instance: object, cls: type) -> Signature:
        from inspect import Parameter, Signature

        made = []
        for each in dataclasses.fields(cls):
            if each.init:
                default: object = each.default
                if default is dataclasses.MISSING:
                    has_factory = each.default_factory is not dataclasses.MISSING
                    default = ... if has_factory else Parameter.empty
                kind = Parameter.KEYWORD_ONLY if each.kw_only else Parameter.POSITIONAL_OR_KEYWORD
                made.append(Parameter(each.name, kind, default=default, annotation=each.type))
        made.sort(key=lambda each: each.kind)
        return Signature(made)


def _repr_of(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _add_comparison(cls: type, names: list[str], *, hashable: bool, has_hash: bool) -> None:
    # With no names, all instances are equal.
    values: Callable[[Any], Any] = attrgetter(*names) if names else lambda _: ()

    def __eq__(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    cls.__eq__ = __eq__  # type: ignore[assignment]
    if hashable and not has_hash:
        cls.__hash__ = __hash__  # type: ignore[assignment]
    elif not has_hash:
        cls.__hash__ = None  # type: ignore[assignment]


def _freeze(cls: type, names: Iterable[str]) -> None:
    fixed = frozenset(names)

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in fixed:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        _put(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in fixed:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    cls.__setattr__ = __setattr__  # type: ignore[assignment]
    cls.__delattr__ = __delattr__  # type: ignore[assignment]


def _add_state(cls: type, names: list[str]) -> None:
    """Lets instances be pickled and copied: a frozen class with slots has no other way to restore them."""

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: Iterable[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            _put(self, name, value)

    cls.__getstate__ = __getstate__  # type: ignore[method-assign, assignment]
    cls.__setstate__ = __setstate__  # type: ignore[attr-defined]

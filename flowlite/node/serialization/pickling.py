"""Pickles of calls, results and exceptions: cloudpickle, with large memory passed as views instead of copied.

What this adds to cloudpickle:

- Buffers of `OUT_OF_BAND` bytes and more (numpy arrays through protocol 5, torch tensors through the reducer below) are
returned as views of the original memory.
- Torch tensors are sent by storage, as with `torch.save`: tensors that share memory still share it afterwards, and
strides are kept. Tensors on a device are sent as CPU tensors, since the reader may have no such device. A tensor that
is read back cannot be enlarged in place (`resize_`), since its memory is the file's.
- A decorated flowlite `Function` is pickled as an attribute of its module if the module can be imported (so it is what
the module makes it there), else as the user's function, which is decorated again where it is loaded.
- Type aliases and type parameters of a notebook are sent with all that belongs to them (`type_syntax.py`).
- Functions and classes of the program's file are pickled as attributes of `__main__` (`Program`), with those global
variables they use that the file alone does not produce. Other objects of `__main__` are pickled by value, share the
`__main__` of the worker, and are found there by name.

Pickles never refer to this package, which has another name on nodes. The functions they need for loading are pickled by
value.
"""

from __future__ import annotations

import dis
import functools
import inspect
import io
import operator
import pickle
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..quick_dataclass import dataclass
from . import type_syntax
from .envelope import MOST_PARTS, Piece
from .main_module import PROGRAM

OUT_OF_BAND = 16 * 1024
_PROTOCOL = 5
_NOWHERE = "__flowlite_pickle__"
# The second is that of type parameters in classes, from Python 3.12 on.
_CLASS_NAMES = frozenset(
    dis.opmap[each] for each in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if each in dis.opmap
)


class Program(Protocol):
    """The program that a call is made from, if it has a file that nodes load (`bundle/main_program.py`)."""

    def holds(self, value: Any) -> bool:
        """Whether a node finds this same function or class by its name in `__main__`."""

    def is_of_file(self, function: types.FunctionType) -> bool:
        """Whether a function's globals are those of the file."""

    def state_of(self, value: Any) -> dict[str, Any]:
        """Returns the global variables to send with a function or class."""

    def attributes_of(self, kind: type) -> dict[str, Any]:
        """Returns the attributes of a class to send with it."""

    def must_send(self, name: str, value: Any) -> bool:
        """Whether a global variable's value may differ from the one that the file alone produces."""


@dataclass(frozen=True)
class Pickled:
    """A pickle in pieces, and the objects met while it was made.

    Attributes:
        stream: The pickle itself.
        buffers: Views of memory that the pickle refers to.
        modules: The modules of its classes and functions, and modules it contains.
        by_value: Functions whose code is in the pickle.
        by_reference: Functions that are imported when it is loaded.
        devices: Devices that tensors were copied from, such as "cuda:0".
        main: The `__main__` needed to load it: "file" for the program's file, "names" for a `__main__` that is filled
            from the pickle, or None.
    """

    stream: list[Piece]
    buffers: list[memoryview]
    modules: frozenset[str]
    by_value: list[types.FunctionType]
    by_reference: list[types.FunctionType]
    devices: frozenset[str]
    main: str | None = None

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(map(len, self.stream)) + sum(map(len, self.buffers))

    def joined(self) -> bytes:
        """Returns the pickle itself as one byte string."""
        return b"".join(bytes(piece) for piece in self.stream)


def dumps(
    value: Any,
    *,
    in_one_piece: bool = False,
    to_worker: bool = False,
    program: Program | None = None,
) -> Pickled:
    """Pickles a value. Raises any exception of the value's own reducers.

    Args:
        value: The value to pickle.
        in_one_piece: Keep all buffers inside the pickle.
        to_worker: The value is a call, loaded by a worker whose `__main__` the call may fill.
        program: The program that the call is made from, if it has a file.
    """
    if to_worker:
        value = (*value, _MainNames())
    buffers: list[memoryview] = []

    def keep_apart(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if (
            in_one_piece
            or len(view) < OUT_OF_BAND
            or (not to_worker and len(buffers) >= MOST_PARTS)
        ):
            return True
        buffers.append(view)
        return False

    sink = _Sink()
    pickler = _pickler_class()(sink, keep_apart, to_worker, program)
    pickler.dump(value)
    return Pickled(
        sink.pieces,
        buffers,
        frozenset(pickler.modules),
        pickler.by_value,
        pickler.by_reference,
        frozenset(pickler.devices),
        pickler.main,
    )


def loads(stream: memoryview | bytes, buffers: Sequence[memoryview] = ()) -> Any:
    """Unpickle; only for streams whose origin has been verified."""
    return pickle.loads(stream, buffers=buffers)


def reference_of(fn: Any) -> tuple[str, str] | None:
    """(module, qualified name) under which an importable module holds `fn`, bare or as a flowlite `Function`."""
    module = getattr(fn, "__module__", None)
    qualname = getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    if module in ("__main__", "__mp_main__") or "<" in qualname or module not in sys.modules:
        return None
    held = held_under(sys.modules[module], qualname)
    return (module, qualname) if held is not None and unwrap(held, until=fn) is fn else None


def held_under(module: types.ModuleType, qualname: str) -> Any:
    """Returns what a module has under a qualified name such as `Class.method`; None if there is nothing."""
    try:
        return operator.attrgetter(qualname)(module)
    except AttributeError:
        return None


def unwrap(held: Any, until: Any = None) -> Any:
    """Returns the user's function inside flowlite `Function` objects (`__flowlite_function__` on their class).

    Other decorators are kept, since they are part of what the user wants to run.
    """
    while held is not until and getattr(type(held), "__flowlite_function__", False):
        held = held.__wrapped__
    return held


class _Sink:
    """A file that keeps the pieces written to it, without copying."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def write(self, data: Any) -> int:
        if not isinstance(data, bytes):
            data = memoryview(data).cast("B")
        self.pieces.append(data)
        return len(data)


class _Storage:
    """Stands for one torch storage while a pickle is made. All tensors that share a storage share one of these."""

    __slots__ = ("storage",)

    def __init__(self, storage: Any) -> None:
        self.storage = storage


class _MainGlobals:
    """Stands for the global variables of the worker's `__main__` while a pickle is made."""


class _MainNames:
    """Stands for the names to set in the worker's `__main__`; pickled after everything else."""


@functools.cache
def _pickler_class() -> Any:
    """Returns the pickler class. Made on first use, since importing cloudpickle takes 35 ms."""
    import dataclasses

    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(
            self,
            sink: _Sink,
            buffer_callback: Callable[[pickle.PickleBuffer], bool],
            to_worker: bool,
            program: Program | None,
        ) -> None:
            super().__init__(sink, protocol=_PROTOCOL, buffer_callback=buffer_callback)
            self.modules: set[str] = set()
            self.by_value: list[types.FunctionType] = []
            self.by_reference: list[types.FunctionType] = []
            self.devices: set[str] = set()
            self.main: str | None = None
            self._storages: dict[int, _Storage] = {}
            self._alive: list[Any] = []
            self._to_worker = to_worker
            self._program = program
            self._namespace: dict[str, Any] = getattr(sys.modules.get("__main__"), "__dict__", {})
            # Objects of `__main__` that are pickled by value, by name.
            self._names: dict[str, Any] = {}
            # The names among them that are in the pickle already.
            self._bound: set[str] = set()
            # Type aliases that are made anew, by the ids of their parameters, and which of them that is.
            self._aliases: dict[int, tuple[Any, int]] = {}
            if to_worker:
                self.globals_ref[id(self._namespace)] = _MainGlobals()

        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if getattr(kind, "__flowlite_function__", False):
                return self._reduce_decorated(obj)
            if kind is types.FunctionType:
                reference = reference_of(obj)
                if reference is not None and not _by_value(obj):
                    self.modules.add(reference[0])
                    self.by_reference.append(obj)
                    if held_under(sys.modules[reference[0]], reference[1]) is not obj:
                        # It is inside a flowlite `Function`.
                        return _portable(_import_raw), reference
                elif self._is_held(obj):
                    return self._reduce_held(obj, _import_raw)
                elif obj.__module__ != _NOWHERE:
                    self.by_value.append(obj)
                    self._note_name(obj)
            elif issubclass(kind, type):
                self.modules.add(str(obj.__module__))
                if obj.__module__ == "__main__":
                    if self._is_held(obj):
                        return self._reduce_held(obj, _import_held)
                    self._note_name(obj)
                    if not self._to_worker:
                        return self._reduce_returning(obj)
                reduced = _whole_class(super().reducer_override(obj), obj)
                return reduced if self._to_worker else _unless_known(reduced)
            elif kind is types.ModuleType:
                self.modules.add(obj.__name__)
            elif kind is functools.cached_property and hasattr(obj, "lock"):
                # Up to Python 3.11 it has a lock.
                return _portable(_cached_property), (obj.func, obj.attrname, obj.__doc__)
            elif kind is io.TextIOWrapper and obj not in (sys.stdout, sys.stderr):
                # cloudpickle would send what the file contains, in place of the file.
                raise TypeError("cannot pickle an open file")
            elif kind is _Storage:
                return _portable(_load_storage), (pickle.PickleBuffer(storage_bytes(obj.storage)),)
            elif obj is dataclasses.MISSING:
                # Fields without a default have this very object.
                return "MISSING"
            elif kind is _MainGlobals:
                return _portable(_main_globals), ()
            elif kind is _MainNames:
                return self._reduce_names()
            elif _is_plain_tensor(obj):
                return self._reduce_tensor(obj)
            elif self._to_worker and kind is functools._lru_cache_wrapper:
                return self._reduce_cached(obj)
            elif type_syntax.is_parameter(obj):
                return self._reduce_parameter(obj) or super().reducer_override(obj)
            elif type_syntax.is_alias(obj) and obj.__module__ == "__main__":
                return self._reduce_alias(obj) or super().reducer_override(obj)
            elif (
                self._to_worker
                and kind.__module__ == "typing"
                and getattr(obj, "__module__", None) == "__main__"
            ):
                return _reduce_typing(obj, kind.__name__) or super().reducer_override(obj)
            return super().reducer_override(obj)

        def _is_held(self, obj: Any) -> bool:
            return self._program is not None and self._program.holds(obj)

        def _reduce_held(self, obj: Any, load: Callable[..., Any]) -> Any:
            """Reduces an object to its name in the program's file, with the state to set there before its use."""
            assert self._program is not None
            self.main = "file"
            reference = ("__main__", obj.__qualname__)
            attributes = self._program.attributes_of(obj) if isinstance(obj, type) else {}
            functions = [obj] if isinstance(obj, types.FunctionType) else []
            self.by_reference += functions
            state = self._program.state_of(obj)
            if not state and not attributes:
                return _portable(load), reference
            return _portable(load), reference, (state, attributes), None, None, _portable(_lay_over)

        def _dynamic_function_reduce(self, func: types.FunctionType) -> Any:
            reduced = super()._dynamic_function_reduce(_with_annotations(func))
            if parameters := getattr(func, "__type_params__", ()):
                reduced[2][1]["__type_params__"] = parameters
            used = reduced[2][1]["__globals__"]
            for name in _names_in_classes(func.__code__) - used.keys():
                if name in func.__globals__:
                    used[name] = func.__globals__[name]
            if not self._to_worker or func.__globals__ is not self._namespace:
                return reduced
            slots = reduced[2][1]
            slots["__globals__"] = _without_ipython(slots["__globals__"])
            program = self._program
            if program is not None and program.is_of_file(func):
                self.main = "file"
                used = slots["__globals__"]
                slots["__globals__"] = {
                    name: value for name, value in used.items() if program.must_send(name, value)
                } | program.state_of(func)
            else:
                self.main = self.main or "names"
                self._note_annotations(annotations_of(func))
            return reduced

        def _reduce_cached(self, obj: Any) -> Any:
            """Reduces what `functools.cache` returned, which pickles as its name, to what a worker can load."""
            if self._is_held(obj):
                return self._reduce_held(obj, _import_held)
            reference = reference_of(obj)
            if reference is not None and not _by_value(obj):
                self.modules.add(reference[0])
                return super().reducer_override(obj)
            self._note_name(obj)
            settings = obj.cache_parameters()
            return _portable(_cached), (obj.__wrapped__, settings["maxsize"], settings["typed"])

        def _reduce_parameter(self, obj: Any) -> Any:
            if id(obj) in self._aliases:
                return _portable(type_syntax.parameter_of), self._aliases[id(obj)]
            source = type_syntax.of_parameter(obj)
            if source is None:
                return None
            # The number by which cloudpickle knows an object again that comes back.
            tracker = cloudpickle.cloudpickle._get_or_create_tracker_id(obj)
            return self._reduce_source(source, type_syntax.make, tracker)

        def _reduce_alias(self, obj: Any) -> Any:
            """Reduces a type alias to its name where the program's file has it, else to what makes it anew."""
            known = self._namespace.get(obj.__name__) is obj
            if known and self._program is not None:
                if not self._program.must_send(obj.__name__, obj):
                    self.main = "file"
                    return None
            elif known and not self._to_worker and PROGRAM in self._namespace:
                return None
            source = type_syntax.of_alias(obj)
            if source is None:
                return None
            for at, each in enumerate(obj.__type_params__):
                self._aliases[id(each)] = obj, at
            if known and self._to_worker:
                self.main = self.main or "names"
                self._names.setdefault(obj.__name__, obj)
            found = known and not self._to_worker
            make = type_syntax.make_or_find if found else type_syntax.make
            return self._reduce_source(source, make, None)

        def _reduce_source(
            self, source: type_syntax.Source, make: Callable[..., Any], tracker: str | None
        ) -> Any:
            values: dict[str, Any] = {}
            return (
                *(_portable(make), (source.name, source.text, values, tracker)),
                *((values, source.kept), None, None, _portable(type_syntax.fill)),
            )

        def _note_name(self, obj: Any) -> None:
            """Records an object that is pickled by value, so that the worker's `__main__` has it under its name."""
            name = obj.__qualname__
            if self._to_worker and unwrap(self._namespace.get(name), until=obj) is obj:
                self.main = self.main or "names"
                self._names.setdefault(name, obj)
            if self._to_worker and isinstance(obj, type) and obj.__module__ == "__main__":
                for base in obj.__mro__:
                    self._note_annotations(annotations_of(base))

        def _note_annotations(self, annotations: Any) -> None:
            """Records the names used in string annotations, since `typing.get_type_hints` looks them up."""
            for text in annotations.values():
                for name in re.findall(r"[^\W\d]\w*", text) if isinstance(text, str) else ():
                    if name in self._namespace:
                        self._names.setdefault(name, self._namespace[name])

        def _reduce_names(self) -> Any:
            """Reduces the recorded names.

            Pickling them may record more names, so the reduction repeats until there are none.
            """
            fresh = {name: value for name, value in self._names.items() if name not in self._bound}
            if not fresh:
                return _portable(_main_globals), ()
            self._bound |= set(fresh)
            return _portable(_bind), (fresh, _MainNames())

        def _reduce_decorated(self, function: Any) -> Any:
            raw = unwrap(function)
            reference = reference_of(raw)
            if reference is not None and not _by_value(raw):
                self.modules.add(reference[0])
                if type(raw) is types.FunctionType:
                    self.by_reference.append(raw)
                return _portable(_import_held), reference
            if self._is_held(raw):
                return self._reduce_held(raw, _import_held)
            described = getattr(function, "described", None)
            if not self._to_worker or described is None:
                return _portable(_adopt), (raw,)
            self.modules.add("flowlite.api.app")
            if unwrap(self._namespace.get(raw.__qualname__), until=raw) is raw:
                self._names[raw.__qualname__] = function
            return _portable(_decorate), (raw, described())

        def _reduce_returning(self, kind: type) -> Any:
            """Reduces a class of the worker's main module: by name for the same program, else by value."""
            program = self._namespace.get(PROGRAM)
            if (
                program is None
                or held_under(sys.modules["__main__"], kind.__qualname__) is not kind
            ):
                return _unless_known(_whole_class(super().reducer_override(kind), kind))
            try:
                value = cloudpickle.dumps(kind, protocol=_PROTOCOL)
            except Exception:
                # Its methods use something that cannot be pickled. The program itself needs no copy of the class.
                value = b""
            return _portable(_returned_class), (program, kind.__qualname__, value)

        def _reduce_tensor(self, tensor: Any) -> Any:
            self.modules.add("torch")
            storage = tensor.untyped_storage()
            if storage.device.type != "cpu":
                self.devices.add(str(storage.device))
            key = storage._cdata
            if key not in self._storages:
                # The original storage is kept alive too: its address must not be reused while this pickle is made.
                holder = _Storage(storage if storage.device.type == "cpu" else storage.cpu())
                self._storages[key] = holder
                self._alive.append(storage)
            return _portable(_load_tensor), (
                self._storages[key],
                tensor.dtype,
                tensor.storage_offset(),
                tuple(tensor.size()),
                tensor.stride(),
                tensor.requires_grad,
            )

    return Pickler


def annotations_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function or class; all of them as text if one cannot be evaluated.

    From Python 3.14 on, annotations are evaluated when they are read, and a name that is not defined, such as one that
    only type checkers import, is an error then.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        try:
            return annotationlib.get_annotations(owner)
        except Exception:
            return annotationlib.get_annotations(owner, format=annotationlib.Format.STRING)
    return inspect.get_annotations(owner)


def _with_annotations(function: types.FunctionType) -> types.FunctionType:
    """Returns the function, or the same one with its annotations as text if they cannot be evaluated."""
    try:
        _ = function.__annotations__
        return function
    except Exception:
        same = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        same.__dict__.update(function.__dict__)
        for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__"):
            setattr(same, name, getattr(function, name))
        same.__annotations__ = annotations_of(function)
        return same


def _names_in_classes(code: types.CodeType) -> set[str]:
    """Returns what the classes that a function defines look up as globals, which cloudpickle does not see."""
    left = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    found: set[str] = set()
    while left:
        inner = left.pop()
        left += [each for each in inner.co_consts if isinstance(each, types.CodeType)]
        if not _CLASS_NAMES.isdisjoint(inner.co_code[::2]):
            found |= {
                each.argval for each in dis.get_instructions(inner) if each.opcode in _CLASS_NAMES
            }
    return found


def _without_ipython(names: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what belongs to a kernel: `get_ipython`, and its own `exit` and `quit`."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return names
    return {
        name: value
        for name, value in names.items()
        if name not in ("get_ipython", "exit", "quit")
        or shell not in (getattr(value, "__self__", None), getattr(value, "_ip", None))
    }


def _whole_class(reduced: Any, kind: type) -> Any:
    """Adds to a class that cloudpickle sends by value what it leaves out."""
    made = getattr(reduced[0], "__name__", "") if isinstance(reduced, tuple) else ""
    if made == "_make_skeleton_enum":
        return _with_all_members(reduced, kind)
    if type(kind).__name__ == "_TypedDictMeta":
        return _typed_dict(reduced)
    return _with_slots(reduced, kind) if made == "_make_skeleton_class" else reduced


def _unless_known(reduced: Any) -> Any:
    """Leaves a class alone where it is known already: what a worker has changed in its copy does not come back."""
    made = getattr(reduced[0], "__name__", "") if isinstance(reduced, tuple) else ""
    if made not in ("_make_skeleton_class", "_make_skeleton_enum"):
        return reduced
    make, args, state, *_, fill = reduced
    return (
        *(_portable(_known_or_made), (make, args), (fill, state)),
        *(None, None, _portable(_fill_if_made)),
    )


def _with_all_members(reduced: Any, kind: Any) -> Any:
    """Lets an enumeration have its aliases, such as `RW = R | W`, and members what `__init__` or `__new__` gave them.

    cloudpickle sends an alias as an attribute, which the original class refuses when it comes back, and makes members
    before the class has its methods.
    """
    bases, name, qualname, _, *rest = reduced[1]
    members = {each: member._value_ for each, member in kind.__members__.items()}
    attributes = {
        each: {key: value for key, value in vars(member).items() if not key.endswith("_")}
        for each, member in kind.__members__.items()
    }
    content, slots = reduced[2]
    own = {key: value for key, value in content.items() if key not in members}
    made_from = _contents_of(kind)
    values = {each: members[each] for each in made_from}
    return (
        reduced[0],
        (bases, name, qualname, members | made_from, *rest),
        (own, slots, attributes, values),
        *(None, None, _portable(_fill_enum)),
    )


def _contents_of(kind: Any) -> dict[str, Any]:
    """The bytes, numbers or texts that members are, by name, where their `__new__` gave them other values.

    Members are made without that method, so that bytes with the value 3 would be three zeros.
    """
    base = kind._member_type_
    if base not in (int, float, complex, str, bytes):
        return {}
    contents = {name: base.__getnewargs__(member)[0] for name, member in kind.__members__.items()}
    same = all(
        type(content) is type(member._value_) and content == member._value_
        for content, member in zip(contents.values(), kind.__members__.values(), strict=True)
    )
    # Members with one content would become one member.
    return {} if same or len(set(contents.values())) < len(kind) else contents


def _typed_dict(reduced: Any) -> Any:
    """Lets a `TypedDict` that extends another one be made: its metaclass refuses `dict`, and adds it itself.

    The class has the annotations of the one that it extends.
    """
    metaclass, name, bases, *rest = reduced[1]
    kept = tuple(base for base in bases if base is not dict)
    return reduced[0], (metaclass, name, kept, *rest), *reduced[2:]


def _with_slots(reduced: Any, kind: type) -> Any:
    """Lets a class that is rebuilt have the slots of the original.

    cloudpickle only sets `__slots__` on a class that has none, so that its objects have a `__dict__`. The original
    class cannot take the state of such an object when it comes back.
    """
    slots = vars(kind).get("__slots__")
    if not isinstance(slots, str | tuple | list | dict):
        return reduced
    metaclass, name, bases, body, *rest = reduced[1]
    if any(getattr(base, "__name__", "") == "NamedTuple" for base in bases):
        # It makes slots of its own, and refuses others.
        return reduced
    return reduced[0], (metaclass, name, bases, body | {"__slots__": slots}, *rest), *reduced[2:]


def _reduce_typing(obj: Any, kind: str) -> Any:
    """Reduces what pickles as its name in `__main__`, which annotations hold and a worker's `__main__` may lack."""
    if kind == "NewType":
        return _portable(_typing), (kind, (obj.__name__, obj.__supertype__), {})
    settings = {}
    # Python 3.13 has defaults, and 3.12 variance that is inferred.
    if hasattr(obj, "has_default") and obj.has_default():
        settings["default"] = obj.__default__
    if getattr(obj, "__infer_variance__", False):
        settings["infer_variance"] = True
    if kind == "TypeVarTuple":
        return _portable(_typing), (kind, (obj.__name__,), settings)
    if kind == "ParamSpec" or (kind == "TypeVar" and settings):
        settings |= {
            name: getattr(obj, f"__{name}__") for name in ("bound", "covariant", "contravariant")
        }
        constraints = getattr(obj, "__constraints__", ())
        return _portable(_typing), (kind, (obj.__name__, *constraints), settings)
    return None


def _by_value(fn: Any) -> bool:
    """Whether the function's module, or a parent package, is registered with cloudpickle to be pickled by value."""
    from cloudpickle.cloudpickle import list_registry_pickle_by_value

    registered = list_registry_pickle_by_value()
    if not registered:
        return False
    parts = str(fn.__module__).split(".")
    return any(".".join(parts[:count]) in registered for count in range(1, len(parts) + 1))


def _is_plain_tensor(obj: Any) -> bool:
    """Whether this is a dense tensor without state that only torch's own reducer preserves."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and type(obj) is getattr(torch, "Tensor", None)
        and obj.layout is torch.strided
        and obj.device.type in ("cpu", "cuda")
        and not (obj.is_quantized or obj.is_nested or obj.is_conj() or obj.is_neg())
        and not obj.__dict__
        and not obj._backward_hooks
    )


def storage_bytes(storage: Any) -> memoryview:
    """Returns the memory of a CPU storage, without numpy, which a node with torch may lack."""
    import ctypes

    if storage.nbytes() == 0:
        return memoryview(b"")
    array = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    array.keep_alive = storage
    return memoryview(array).cast("B")


@functools.cache
def _portable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a copy of a function that cloudpickle pickles by value, since its module does not exist."""
    code = fn.__code__.replace(co_filename="<flowlite>")
    names = {"__builtins__": __builtins__, "__name__": _NOWHERE}
    twin = types.FunctionType(code, names, fn.__name__)
    twin.__module__ = _NOWHERE
    twin.__qualname__ = fn.__name__
    return twin


# The functions below run where the pickle is loaded. They import what they need and use no name of this module.


def _load_storage(buffer):  # type: ignore[no-untyped-def]
    import torch

    if not len(memoryview(buffer)):
        return torch.UntypedStorage(0)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _load_tensor(storage, dtype, offset, size, stride, requires_grad):  # type: ignore[no-untyped-def]
    import torch

    tensor = torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _import_held(module, qualname):  # type: ignore[no-untyped-def]
    import importlib
    import operator

    return operator.attrgetter(qualname)(importlib.import_module(module))


def _import_raw(module, qualname):  # type: ignore[no-untyped-def]
    import importlib
    import operator

    held = operator.attrgetter(qualname)(importlib.import_module(module))
    while getattr(type(held), "__flowlite_function__", False):
        held = held.__wrapped__
    return held


def _cached(fn, maxsize, typed):  # type: ignore[no-untyped-def]
    import functools

    return functools.lru_cache(maxsize, typed)(fn)


def _cached_property(fn, name, doc):  # type: ignore[no-untyped-def]
    import functools

    made = functools.cached_property(fn)
    made.attrname, made.__doc__ = name, doc
    return made


def _known_or_made(make, args):  # type: ignore[no-untyped-def]
    from cloudpickle import cloudpickle

    # The last arguments are what cloudpickle knows a class by, and one without a use.
    known = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])
    if known is not None:
        return known
    made = make(*args)
    type.__setattr__(made, "__flowlite_made__", True)
    return made


def _fill_if_made(kind, state):  # type: ignore[no-untyped-def]
    fill, content = state
    if "__flowlite_made__" in vars(kind):
        type.__delattr__(kind, "__flowlite_made__")
        fill(kind, content)


def _fill_enum(kind, state):  # type: ignore[no-untyped-def]
    import contextlib

    from cloudpickle import cloudpickle

    content, slots, attributes, values = state
    cloudpickle._class_setstate(kind, (content, slots))
    for name, found in attributes.items():
        vars(kind[name]).update(found)
    known = kind._value2member_map_
    for name in values:
        known.pop(kind[name]._value_, None)
    for name, value in values.items():
        kind[name]._value_ = value
        # A value that cannot be hashed is found by comparison.
        with contextlib.suppress(TypeError):
            known[value] = kind[name]


def _typing(kind, values, settings):  # type: ignore[no-untyped-def]
    import typing

    made = getattr(typing, kind)(*values, **settings)
    made.__module__ = "__main__"
    return made


def _adopt(fn):  # type: ignore[no-untyped-def]
    fn.local = fn
    return fn


def _decorate(fn, described):  # type: ignore[no-untyped-def]
    import importlib

    return importlib.import_module("flowlite.api.app").redecorate(fn, described)


def _main_globals():  # type: ignore[no-untyped-def]
    import sys

    return sys.modules["__main__"].__dict__


def _bind(names, following):  # type: ignore[no-untyped-def]
    import sys

    sys.modules["__main__"].__dict__.update(names)


def _lay_over(held, state):  # type: ignore[no-untyped-def]
    import sys

    names, attributes = state
    sys.modules["__main__"].__dict__.update(names)
    for name, value in attributes.items():
        setattr(held, name, value)


def _returned_class(program, qualname, value):  # type: ignore[no-untyped-def]
    import pickle
    import sys

    held = sys.modules.get("__main__")
    if getattr(held, "__flowlite_program__", None) == program:
        for part in qualname.split("."):
            held = getattr(held, part, None)
        if isinstance(held, type):
            return held
    if not value:
        raise ImportError(
            f"the class {qualname} is found only by the program that the task was started from"
        )
    return pickle.loads(value)

"""Serialises a call: the function, its arguments and the source it needs, addressed by hash.

How the function is sent:

- by reference, if it belongs to a module that a node can import: an installed module, or one of the project, whose
  source is snapshotted now (`source.py`). `call.bin` names module and function, and the node unwraps the decorated
  function;
- by reference to `__main__`, if it belongs to the program's own file: the file is snapshotted, the node loads it as its
  main module, and then sets the variables that the program has changed since (`main_program.py`);
- by value otherwise (notebooks, lambdas, closures, modules whose file does not match their name): its code and the
  variables it captures are pickled. Modules of the project that it imports are snapshotted as well.

`call.bin` is an envelope (`node/serialization/envelope.py`); its header is JSON:

    {"python": [3, 11], "name": "train", "function": [module, qualified name] or null,
     "lines": {file name: source text of code that is sent by value}, "main": {...} or null, "parts": [...]}

The first part is the pickle of (function or None, args, kwargs, names in `__main__`); the other parts are the memory of
its arrays. "main" says what `__main__` is: a file of the snapshot "source" ({"kind": "file", "file", "source", "path",
"module", "digest", "argv"}), or a module that is filled with the names in the pickle ({"kind": "names", "settings"}).
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowlite.bundle import scan
from flowlite.bundle.captures import captures, explain
from flowlite.bundle.imports import warm_imports
from flowlite.bundle.main_file import MainFile, note_main_file
from flowlite.bundle.main_program import MainProgram
from flowlite.bundle.project import Project
from flowlite.bundle.signature import bind, function_name
from flowlite.bundle.source import Source, reachable, snapshot
from flowlite.errors import BundleError, BundleWarning, StoreError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.serialization import pickling
from flowlite.node.serialization.envelope import write_envelope
from flowlite.node.worker.process_settings import note_settings

LARGE_CAPTURE = 10 * 1000 * 1000
_LONGEST_SOURCE = 1024 * 1024
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_registering = threading.RLock()


@dataclass(frozen=True)
class Bundle:
    """A serialised call on disk, ready to be sent to nodes.

    Attributes:
        path: `call.bin`.
        sha256: Hash of `call.bin`, which the node checks before it loads anything.
        function: Name of the function, for messages.
        imports: Modules that the fork server should import before it forks.
        sources: Snapshots, in the order of `sys.path`.
        results: "any" or "plain".
        start: "auto", "fork" or "spawn".
    """

    path: Path
    sha256: str
    function: str
    imports: tuple[str, ...]
    sources: tuple[Source, ...]
    results: str
    start: str

    def call_config(self, directory: str) -> dict[str, Any]:
        """`AgentConfig.call` where the call and its sources are in this directory."""
        return {
            "kind": "function",
            "bundle": os.path.join(directory, self.path.name),
            "sha256": self.sha256,
            "source": [
                {"zip": os.path.join(directory, s.path.name), "sha256": s.sha256}
                for s in self.sources
            ],
            "imports": list(self.imports),
            "start": self.start,
            "results": self.results,
        }


def build_bundle(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    directory: Path,
    results: str = "any",
    start: str = "auto",
) -> Bundle:
    """Writes `call.bin` and `source-<sha>.zip` into `directory`.

    Args:
        fn: A function, or a flowlite `Function`, which is unwrapped.
        args: Positional arguments.
        kwargs: Keyword arguments.
        directory: Created if it does not exist.
        results: What the function may return: "any", or "plain" for plain data, whose format cannot execute code.
        start: How workers are started: "auto", "fork" (from the fork server) or "spawn".

    Returns:
        The bundle. A `BundleWarning` is issued for captured variables over 10 MB, and for tensors that had to be copied
        from a device.

    Raises:
        ArgumentError: The arguments do not fit the signature. Nothing has been written.
        BundleError: Something cannot be serialised, or the source is too large. Nothing has been written.
        StoreError: The directory cannot be written to. Nothing is left in it.
    """
    raw: Callable[..., Any] = pickling.unwrap(fn)
    bound = bind(raw, args, kwargs)
    arguments = _named(bound.arguments if bound else {}, args, kwargs)
    project = Project()
    program = _program()
    reference, pickled = _pickle(raw, args, kwargs, arguments, project, program)
    _refuse_magics(pickled.by_value)
    texts = list(_warnings(pickled, program))
    codes = _codes(raw, pickled, project)
    modules = pickled.modules | ({reference[0]} if reference else set())
    main = program if pickled.main == "file" else None
    if main is not None:
        main.refuse_top_level()
        if main.file.package:
            modules |= {main.file.package}
    needed = reachable(project, modules, [*codes, *_main_code(main)])
    imports = warm_imports(project, modules, codes, _main_code(main))
    with _writing(directory):
        sources = snapshot(project, needed, directory, main.file if main is not None else None)
        header = {
            "python": list(sys.version_info[:2]),
            "name": function_name(raw),
            "function": reference,
            "lines": _lines(pickled.by_value, main),
            "main": _describe_main(pickled, main, sources, imports),
        }
        path = directory / "call.bin"
        sha256 = write_envelope(
            path, header, [pickled.stream, *([b] for b in pickled.buffers)], sealed=False
        )
        bundle = Bundle(
            path=path,
            sha256=sha256,
            function=function_name(raw),
            imports=imports,
            sources=sources,
            results=results,
            start=start,
        )
    for text in texts:
        warnings.warn(text, BundleWarning, stacklevel=_callers_level())
    return bundle


def _named(
    bound: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The arguments with the names of their parameters, or `#1`, `#2` … if the signature is unknown."""
    return list((bound or {**{f"#{i + 1}": a for i, a in enumerate(args)}, **kwargs}).items())


def _pickle(
    raw: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    arguments: list[tuple[str, Any]],
    project: Project,
    program: MainProgram | None,
) -> tuple[tuple[str, str] | None, pickling.Pickled]:
    """The reference to the function, if it is sent by reference, and the pickle of the rest."""
    reference = pickling.reference_of(raw)
    by_value: set[str] = set()
    if reference and not project.importable(sys.modules[reference[0]]):
        by_value.add(reference[0])
    while True:
        if reference and reference[0] in by_value:
            reference = None
        content = (None if reference else raw, tuple(args), dict(kwargs))
        with _by_value(by_value):
            try:
                pickled = pickling.dumps(content, to_worker=True, program=program)
            except Exception as error:
                raise BundleError(explain(arguments, raw, error)) from error
        # Modules that a node could not import are sent by value, too; their code may use further ones.
        missing = {
            name
            for name in pickled.modules - by_value
            if name in sys.modules and not project.importable(sys.modules[name])
        } - {"__main__", "__mp_main__"}
        if not missing:
            return reference, pickled
        by_value |= missing


@contextlib.contextmanager
def _by_value(modules: set[str]) -> Iterator[None]:
    """Makes cloudpickle send the functions and classes of these modules by value.

    Its registry belongs to the whole process, so bundles that need it are made one after the other.
    """
    if not modules:
        yield
        return
    import cloudpickle
    from cloudpickle.cloudpickle import list_registry_pickle_by_value

    with _registering:
        fresh = [sys.modules[name] for name in modules - list_registry_pickle_by_value()]
        for module in fresh:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in fresh:
                cloudpickle.unregister_pickle_by_value(module)


def _refuse_magics(functions: Sequence[types.FunctionType]) -> None:
    """Raises BundleError for a function of a cell with a `!command` or a `%magic`, which only the kernel has."""
    for fn in functions:
        if "get_ipython" in fn.__globals__ and scan.uses_magics(fn.__code__):
            raise BundleError(
                f"{function_name(fn)} has a `!command` or a `%magic` of the notebook, which workers do not have; "
                "run a command with subprocess.run([…], check=True)"
            )


def _callers_level() -> int:
    """The `stacklevel` of the first caller outside of flowlite, for a warning of the function that calls this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def _warnings(pickled: pickling.Pickled, program: MainProgram | None) -> Iterator[str]:
    for device in sorted(pickled.devices):
        yield f"tensors on {device} are sent as CPU tensors; move them back with .to() inside the function"
    if pickled.size <= LARGE_CAPTURE:
        return
    seen: set[int] = set()
    of_file = [] if program is None else [*filter(program.is_of_file, pickled.by_reference)]
    for fn in (*pickled.by_value, *of_file):
        for capture in captures(fn):
            if id(capture.value) in seen or isinstance(capture.value, types.FunctionType):
                continue
            # The program's file is there, too, and makes most of its variables.
            if (
                program is not None
                and fn in of_file
                and not program.must_send(capture.variable, capture.value)
            ):
                continue
            seen.add(id(capture.value))
            size = _size(capture.value)
            if size > LARGE_CAPTURE:
                yield (
                    f"{capture} is {size / 1e6:.0f} MB and is sent to every node with the function: "
                    "make it inside the function, pass it as an argument, or put it on a volume"
                )


def _size(value: Any) -> int:
    try:
        return pickling.dumps(value).size
    except Exception:
        # A value may be unpicklable alone although it could be pickled with the function.
        return 0


def _codes(
    raw: Callable[..., Any], pickled: pickling.Pickled, project: Project
) -> list[tuple[types.CodeType, str]]:
    """The user's code that will run, each with the package that its relative imports start from."""
    own = [fn for fn in pickled.by_reference if project.owns(fn.__module__)]
    functions = [*pickled.by_value, *own]
    if isinstance(raw, types.FunctionType):
        functions.append(raw)
    return [(fn.__code__, str(fn.__globals__.get("__package__") or "")) for fn in functions]


def _program() -> MainProgram | None:
    """The running program; None if it has no Python file."""
    file = note_main_file()
    if file is None:
        return None
    try:
        return _program_of(file)
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=1)
def _program_of(file: MainFile) -> MainProgram:
    return MainProgram(file)


def _main_code(main: MainProgram | None) -> list[tuple[types.CodeType, str]]:
    return [] if main is None else [(main.code, main.file.package)]


def _describe_main(
    pickled: pickling.Pickled,
    main: MainProgram | None,
    sources: Sequence[Source],
    imports: Sequence[str],
) -> dict[str, Any] | None:
    if main is None:
        if pickled.main is None:
            return None
        uses_torch = any(name.partition(".")[0] == "torch" for name in imports)
        return {"kind": "names", "settings": note_settings(torch_too=uses_torch)}
    file = main.file
    return {
        "kind": "file",
        "file": os.path.relpath(file.path, file.root),
        "source": next(each.sha256 for each in sources if each.root == file.root),
        "path": file.path,
        "module": file.name,
        "digest": file.sha256,
        "argv": list(file.argv),
    }


def _lines(functions: Sequence[types.FunctionType], main: MainProgram | None) -> dict[str, str]:
    """Source text by file name, so that tracebacks on the node show the lines that were submitted."""
    texts = {}
    own = {main.file.path} if main is not None else set()
    for name in sorted({fn.__code__.co_filename for fn in functions} - own):
        text = "".join(linecache.getlines(name))
        if 0 < len(text) <= _LONGEST_SOURCE:
            texts[name] = text
    return texts


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Removes the files that the block wrote if it fails, and raises StoreError for an OSError."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = set(directory.iterdir())
    except OSError as error:
        raise StoreError(f"the call cannot be written to {directory}: {error.strerror}") from error
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            for path in set(directory.iterdir()) - before:
                path.unlink()
        if isinstance(error, OSError):
            raise StoreError(
                f"the call cannot be written to {directory}: {error.strerror}; free some space there, "
                "or let FLOW_HOME point elsewhere"
            ) from error
        raise

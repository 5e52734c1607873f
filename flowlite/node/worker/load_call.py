"""Verifies, loads and runs the call on a node, and writes its outcome."""

from __future__ import annotations

import hashlib
import linecache
import operator
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from typing import Any

from ..quick_dataclass import dataclass
from ..serialization import main_module, pickling, remote_exception, result_file
from ..serialization.envelope import Envelope, EnvelopeError, open_envelope
from ..system import atomic_files, trace
from . import process_settings


class LoadError(Exception):
    """The call cannot be loaded on this node; failure kind "load"."""


@dataclass
class Call:
    """A call that is ready to run; `results` says which results are allowed, "any" or "plain"."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: str

    def run(self) -> Any:
        """Calls the function. A coroutine is run to completion."""
        value = self.function(*self.args, **self.kwargs)
        if isinstance(value, types.CoroutineType):
            import asyncio

            value = asyncio.run(value)
        return value


def prepare_call(call: dict[str, Any]) -> None:
    """Verifies the bundle and extracts its source, once per node.

    The reaper calls this before it forks workers, so that a bad bundle fails before GO. Forked workers do not hash a
    verified bundle again, and find the source extracted.

    Args:
        call: `AgentConfig.call`, with absolute paths.

    Raises:
        LoadError: The call cannot be loaded; the text says why, and what to do.
    """
    _open(call)
    for source in call.get("source", ()):
        _extract(source["zip"], source["sha256"])


def load_call(call: dict[str, Any]) -> Call:
    """Verifies the call, puts its source snapshots first in `sys.path`, and loads it.

    Arguments and errors are those of `prepare_call`.
    """
    envelope = _open(call)
    for source in reversed(call.get("source", ())):
        directory = _extract(source["zip"], source["sha256"])
        if directory not in sys.path:
            sys.path.insert(0, directory)
    _add_packed_modules()
    _show_lines(envelope.header.get("lines", {}))
    _load_main(call, envelope.header.get("main"))
    reference = envelope.header.get("function")
    try:
        function = None if reference is None else _import_function(*reference)
        by_value, args, kwargs, _ = pickling.loads(envelope.parts[0], envelope.parts[1:])
    except BaseException as error:
        if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
            raise
        raise LoadError(_why_not(error, envelope.header)) from error
    return Call(
        by_value if function is None else function, args, kwargs, call.get("results", "any")
    )


def fill_main(names: dict[str, Any], call: dict[str, Any]) -> None:
    """Gives a process that a worker started the names that the worker's main module has from a notebook."""
    main_module.fresh_main()
    load_call({**call, "main": "filled"})
    names.update(
        (name, value)
        for name, value in vars(sys.modules["__main__"]).items()
        if not (name.startswith("__") and name.endswith("__"))
    )


def run_call(
    call: dict[str, Any], result: str | os.PathLike[str], *, node: int, rank: int
) -> dict[str, Any] | None:
    """Loads and runs a call, and writes its outcome to the file `result`, which appears when it is complete.

    Returns:
        None when the function returned and its value was written. Otherwise the `failure` of the worker event:
        {"kind": "load" | "exception" | "result", "type": ..., "message": ...}; the worker then exits with 1.
        `SystemExit` is not caught, so that the worker can exit with its code.

    Raises:
        BaseException: In a child process that the function has forked, whatever ends it: the outcome is not its own.
    """
    kind, process = "load", os.getpid()
    try:
        with trace.span("load the call"):
            ready = load_call(call)
        kind = "exception"
        with trace.span("the function"):
            value = ready.run()
        if os.getpid() != process:
            raise SystemExit(0)
        kind = "result"
        with trace.span("write the result"):
            result_file.write_value(result, value, ready.results, node=node, rank=rank)
    except SystemExit:
        raise
    except BaseException as error:
        if os.getpid() != process:
            raise
        _note_as_last(error)
        return _report(result, error, kind, node, rank)
    return None


def _note_as_last(error: BaseException) -> None:
    """Leaves an exception in `sys`, as Python does with the one that ends a program. Exit handlers look there."""
    sys.last_exc = sys.last_value = error  # type: ignore[attr-defined, unused-ignore]
    sys.last_type = type(error)
    sys.last_traceback = remote_exception.without_own_head(error.__traceback__)


def _report(
    result: str | os.PathLike[str], error: BaseException, kind: str, node: int, rank: int
) -> dict[str, Any]:
    try:
        return result_file.write_exception(result, error, node=node, rank=rank, kind=kind)
    except OSError as problem:
        # The disk is full. The event that is sent at the exit still carries the error.
        summary = f"{error} (and it could not be written to {os.fspath(result)}: {problem})"
        return {"kind": kind, "type": type(error).__name__, "message": summary}


def _load_main(call: dict[str, Any], main: dict[str, Any] | None) -> None:
    """Loads the main module that the call needs as `__main__`.

    Raises:
        LoadError: The program's file raised an error; the message names the line.
    """
    if main is None:
        return
    if main["kind"] == "names":
        if call.get("main") != "filled":
            main_module.fillable_main(call, loader=__name__)
        process_settings.make_settings(main["settings"])
        return
    from importlib.util import decode_source

    path = main["path"]
    archive = next(each for each in call["source"] if each["sha256"] == main["source"])
    file = os.path.join(_extract(archive["zip"], main["source"]), main["file"])
    try:
        with open(file, "rb") as opened:
            text = decode_source(opened.read())
        made = main_module.make_main(
            path,
            _place_of_main(call, main) or file,
            module=main["module"],
            digest=main["digest"],
            argv=main["argv"],
        )
        main_module.run_main(made, text, path)
    except main_module.MainModuleError as error:
        raise LoadError(str(error)) from error
    except Exception as error:
        raise LoadError(_why_not_main(error, path)) from error


def _place_of_main(call: dict[str, Any], main: dict[str, Any]) -> str | None:
    """Returns the path of the program's file among its other files, so that `Path(__file__).parent` has them, too.

    That is its place in the task's copy of the project, or the path on the submitting machine where that exists here.
    None if the file there is not the one that was sent, since processes of the worker load it from its `__file__`.
    """
    for place in filter(None, (call.get("main_in_project"), main["path"])):
        try:
            with open(place, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == main["digest"]:
                    return str(place)
        except OSError:
            continue
    return None


def _why_not_main(error: Exception, path: str) -> str:
    place = main_module.where_in(error, path)
    if isinstance(error, ModuleNotFoundError):
        return f"{place}: {_lacks(error)}"
    return (
        f"{place}: {type(error).__name__}: {error}. Each worker loads this file as its main module; what only the "
        'program itself should do belongs under `if __name__ == "__main__":`'
    )


def _open(call: dict[str, Any]) -> Envelope:
    try:
        envelope = open_envelope(call["bundle"], sha256=call["sha256"])
    except EnvelopeError as error:
        raise LoadError(str(error)) from None
    made_with, here = envelope.header.get("python"), list(sys.version_info[:2])
    if made_with != here:
        raise LoadError(
            f"the call was made with Python {result_file.dotted(made_with)}, and this node runs Python "
            f"{result_file.dotted(here)} ({sys.executable}): code does not travel between minor versions; "
            "use the same on both sides"
        )
    return envelope


def _extract(path: str, sha256: str) -> str:
    """Returns the directory beside the zip with its contents. The first process that needs it extracts it."""
    directory = path.removesuffix(".zip")
    if os.path.isdir(directory):
        return directory
    import zipfile

    try:
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise LoadError(f"{path} is not the file that was sent: its SHA-256 differs")
            temporary = tempfile.mkdtemp(prefix=".source-", dir=os.path.dirname(path))
            try:
                with zipfile.ZipFile(file) as archive:
                    archive.extractall(temporary)
                _close_to_others(temporary)
                atomic_files.name_directory(temporary, directory)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, zipfile.BadZipFile) as error:
        raise LoadError(f"the source snapshot {path} cannot be extracted: {error}") from error
    return directory


def _close_to_others(directory: str) -> None:
    """Takes all rights from other users; zipfile leaves those of the umask."""
    for above, directories, files in os.walk(directory):
        for names, mode in ((directories, 0o700), (files, 0o600)):
            for name in names:
                os.chmod(os.path.join(above, name), mode)


def _import_function(module: str, qualname: str) -> Callable[..., Any]:
    """Returns the user's function by its name, without the flowlite `Function` that wraps it."""
    import importlib

    held = operator.attrgetter(qualname)(importlib.import_module(module))
    function: Callable[..., Any] = pickling.unwrap(held)
    return function


def _add_packed_modules() -> None:
    """Makes the modules in the zip (cloudpickle) importable, after all modules that the node has itself."""
    archive = getattr(__spec__.loader, "archive", None) if __spec__ is not None else None
    if archive is not None:
        packed = os.path.join(archive, "packed")
        if packed not in sys.path:
            sys.path.append(packed)


def _show_lines(files: dict[str, str]) -> None:
    """Registers the source of code that was pickled by value, for tracebacks and for `inspect.getsource`.

    Compilers of kernels use `inspect.getsource`.
    """
    for name, text in files.items():
        # An entry without a time is never replaced by a file of that name on this disk.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _why_not(error: BaseException, header: dict[str, Any]) -> str:
    name = header.get("name", "the function")
    if isinstance(error, ModuleNotFoundError):
        return f"{name} cannot be loaded: {_lacks(error)}"
    return f"{name} cannot be loaded on this node: {type(error).__name__}: {error}"


def _lacks(error: ModuleNotFoundError) -> str:
    return (
        f"there is no module {error.name!r} on this node; install it there, or name its package in "
        "dependencies="
    )

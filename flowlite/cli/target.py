"""Finds the decorated function for `FILE::FUNCTION`, importing the file as Python itself would."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from flowlite.api import import_guard
from flowlite.bundle.imports import module_source
from flowlite.bundle.main_file import read_main_file, set_main_file
from flowlite.cli.output import Quit, tell
from flowlite.errors import ConfigError, FlowError
from flowlite.in_worker.hidden_modules import hidden_module
from flowlite.node.serialization.main_module import MainModuleError, make_main, run_main
from flowlite.python_request import of_active_environment
from flowlite.settings.suggest import did_you_mean

if TYPE_CHECKING:
    from flowlite.api.app import Function


def load_function(target: str) -> Function[..., Any]:
    """The function that `FILE.py` or `FILE.py::FUNCTION` names. Raises ConfigError, which lists those that exist."""
    text, _, name = target.partition("::")
    module = load_module(Path(text))
    functions = _functions(module)
    if name:
        return _named(module, text, name, functions)
    if len(functions) == 1:
        return next(iter(functions.values()))
    if not functions:
        raise ConfigError(
            f"{text} has no function decorated with @app.function; decorate one, or run the script with "
            f"`flow run -- python {text}`"
        )
    listed = ", ".join(f"{text}::{known}" for known in functions)
    raise ConfigError(f"{text} has {len(functions)} functions; say which: {listed}")


def load_module(path: Path) -> ModuleType:
    """Loads a file as the main module, as nodes do: without the code under `if __name__ == "__main__":`."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"no file {path}; give FILE.py::FUNCTION, task.yaml, or `-- COMMAND`")
    root, name = _place_of(path)
    in_package = root != path.parent
    known = sys.modules.get(name)
    if known is not None and _file_of(known) != path:
        raise ConfigError(
            f"{path.name} has the name of the module {name!r}, which is loaded already from {_file_of(known)}; "
            "rename the file"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    arguments = sys.argv
    try:
        file = read_main_file(str(path), name if in_package else None, ())
        module = make_main(
            file.path, file.path, module=file.name, digest=file.sha256, argv=file.argv
        )
        set_main_file(file)
        with import_guard.users_file():
            run_main(module, file.text, file.path)
    except (KeyboardInterrupt, Quit, import_guard.StartedByImport):
        raise
    except BaseException as error:
        _explain(error, path)
        raise Quit(2) from None
    finally:
        sys.argv = arguments
    return module


def _place_of(path: Path) -> tuple[Path, str]:
    """The directory from which Python imports a file, and the name that its module has there."""
    root, name = path.parent, path.stem
    while (root / "__init__.py").exists():
        root, name = root.parent, f"{root.name}.{name}"
    if root == path.parent or str(root) in sys.path:
        return root, name
    # The package may be in a namespace package, which has no `__init__.py`: `acme.train` of an installed `src/`. From
    # `src/acme` instead, the other packages there would hide installed ones that have the same name. The current
    # directory is in the path for other reasons, too.
    longer = name
    for inner, above in itertools.pairwise([root, *root.parents]):
        longer = f"{inner.name}.{longer}"
        found = module_source(longer)
        if above != Path.cwd() and found is not None and os.path.realpath(found) == str(path):
            return above, longer
    return root, name


def _functions(module: ModuleType) -> dict[str, Function[..., Any]]:
    """The decorated functions that are defined in this module, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(type(value), "__flowlite_function__", False)
        and value.__module__ == module.__name__
    }


def _named(
    module: ModuleType, text: str, name: str, functions: dict[str, Function[..., Any]]
) -> Function[..., Any]:
    found: Any = getattr(module, name, None)
    if getattr(type(found), "__flowlite_function__", False):
        return cast("Function[..., Any]", found)
    if callable(found) and not isinstance(found, type):
        from flowlite.api.app import FlowApp

        return FlowApp().function(found)
    known = ", ".join(functions) or "none that is decorated with @app.function"
    raise ConfigError(
        f"{text} has no function {name!r}{did_you_mean(name, functions)}; it has: {known}"
    )


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _explain(error: BaseException, path: Path) -> None:
    """Shows the user's traceback, without the frames of the import machinery and flowlite."""
    from flowlite.output.printing import RED, ColouredText

    if isinstance(error, MainModuleError):
        tell(ColouredText("error:", RED), f" {error}")
        return
    if hidden := hidden_module(error):
        tell(ColouredText("error:", RED), f" {hidden}")
        return
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != str(path):
        at = at.tb_next
    if isinstance(error, FlowError) and at is not None:
        # An error of flowlite's own: the message and the line are enough.
        tell(ColouredText("error:", RED), f" {path}:{at.tb_lineno}: {error}")
        return
    tell(
        ColouredText("error:", RED), f" {path} cannot be imported: {type(error).__name__}: {error}"
    )
    if isinstance(error, ModuleNotFoundError) and (active := of_active_environment()):
        tell(
            f"`flow` runs in {sys.prefix}, which has packages of its own, and not in the active environment; install "
            f"flowlite there, and run `{active} -m flowlite`"
        )
    if at is not None:
        tell("".join(traceback.format_exception(type(error), error, at)).rstrip())

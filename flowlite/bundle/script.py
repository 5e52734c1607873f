"""What a command that runs a Python script needs before it runs, read from the script's source.

The fork server imports these modules before it knows the script's arguments and rank. So a module counts only if the
script imports it in any case, and if nothing that the script does before can change how it is imported. The source is
read in the order in which it runs. After a statement that changes the search path, the warnings, the directory or
modules themselves, nothing counts. A variable of the environment with a constant name does not end the reading: the
fork server compares its name with those that it saw being read (`node/forkserver/observed_imports.py`).
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from flowlite.bundle import scan
from flowlite.bundle.imports import (
    LATE_IMPORTS,
    is_submodule,
    may_be_loaded_ahead,
    module_source,
)
from flowlite.bundle.project import is_installed_file
from flowlite.node.config import python_command
from flowlite.node.config.python_command import NoPython, NotForked, PythonCommand
from flowlite.node.quick_dataclass import dataclass
from flowlite.spec.launchers import SHELLS, launcher_in

if TYPE_CHECKING:
    from flowlite.spec import TaskConfig

# Modules that read a file of the working directory when they are imported.
_READ_FILES = {"matplotlibrc": "matplotlib", ".numba_config.yaml": "numba"}
# What changes how later modules are imported, by the first name of an expression and what follows it.
_TAINTING = """
    sys.path sys.modules sys.meta_path sys.path_hooks sys.argv warnings.filterwarnings warnings.simplefilter
    warnings.resetwarnings os.chdir os.environb os.putenv os.unsetenv site.addsitedir locale.setlocale
    importlib.reload builtins.__import__ torch.multiprocessing.set_start_method multiprocessing.set_start_method
    threading.Thread os.fork runpy.run_path runpy.run_module
"""
_TAINTS = frozenset(_TAINTING.split())
_LARGEST = 4 << 20
_PYTHON_IN_LINE = re.compile(r"(^|[\s;&|(/])python[\d.]*\s")


def script_call(config: TaskConfig, directory: Path | None) -> dict[str, Any]:
    """Returns how the workers of a command start, as entries of `AgentConfig.call`.

    Args:
        config: The task.
        directory: The directory here that the workers' directory is a copy of; None if it is none.

    That is {"start": "spawn", "why": reason}, or {"start", "imports", "late", "writes"}: modules to import, those of
    them that are imported after the script has set variables of the environment, and the names of these variables.
    Nothing for a command that is not known to run Python.
    """
    try:
        return _read(config, directory)
    except NoPython:
        return {}
    except NotForked as reason:
        return {"start": "spawn", "why": str(reason)}


def _read(config: TaskConfig, directory: Path | None) -> dict[str, Any]:
    command = config.command
    if isinstance(command, str) and _PYTHON_IN_LINE.search(command):
        raise NotForked("a shell runs the command line")
    if isinstance(command, str) or command is None or config.batch is not None:
        raise NoPython
    if not python_command.is_python(command[0]) and find_program(command[0]) is None:
        raise _not_python(command)
    if config.start == "spawn":
        raise NotForked("start='spawn'")
    if (launcher := launcher_in(command)) is not None:
        raise NotForked(f"{launcher.name} starts the workers itself, each as a Python of its own")
    if config.distributed_mode not in ("auto", "manual"):
        raise NotForked(f"distributed_mode {config.distributed_mode!r} starts it")
    if config.image is not None:
        raise NotForked("it runs in a container")
    if python_command.is_python(command[0]):
        reader = _of_python(python_command.parse(command), directory)
    else:
        reader = _of_console_script(command, directory)
    reader.settle()
    here = {_READ_FILES[name] for name in _READ_FILES if directory and (directory / name).exists()}
    wanted = [name for name in reader.certain() if _is_wanted(name, here)]
    late = [name for name in _late(reader, wanted) if _is_wanted(name, here)]
    return {
        "start": config.start,
        "imports": list(dict.fromkeys([*wanted, *late])),
        "late": [name for name in dict.fromkeys([*wanted, *late]) if name not in reader.early],
        "writes": sorted(reader.writes),
    }


def _of_python(command: PythonCommand, directory: Path | None) -> _Reader:
    if directory is None and not os.path.isabs(command.script):
        raise NotForked("its files are not sent from here, so its imports are not known")
    directory = directory or Path("/")
    if command.module:
        reader = _Reader([str(directory), *_python_path(directory)])
        package = command.module.rpartition(".")[0]
        reader.take(package)
        # Not the module itself: the script would find it imported, and all that it does would be done twice.
        found = reader.file_of(command.module) or module_source(command.module)
        if found is None:
            return reader
        if os.path.basename(found) == "__init__.py":
            package, found = command.module, os.path.join(os.path.dirname(found), "__main__.py")
            reader.take(package)
        reader.read_main(found, package)
        return reader
    return _of_script(str(directory / command.script), directory)


def _of_script(path: str, directory: Path) -> _Reader:
    reader = _Reader([os.path.dirname(os.path.realpath(path)), *_python_path(directory)])
    reader.read_main(path, "")
    return reader


def _of_console_script(command: Sequence[str], directory: Path | None) -> _Reader:
    """Reads a program that the environment of this Python, or the PATH, has under the same name as a node."""
    directory, name = directory or Path("/"), command[0]
    path = str(directory / name) if "/" in name else find_program(name)
    if path is None:
        raise _not_python(command)
    try:
        with open(path, "rb") as file:
            python_command.interpreter_of(file.readline(4096))
    except (OSError, NoPython) as error:
        raise _not_python(command) from error
    reader = _of_script(path, directory)
    programs = os.path.realpath(os.path.dirname(sys.executable))
    if "/" not in name or os.path.dirname(os.path.realpath(path)) == programs:
        # The command of a package imports the package. A script of the user's own may import a debugger.
        for module in _imported_by(path):
            python_command.refuse_runner(module)
    return reader


def _imported_by(path: str) -> Iterator[str]:
    """The modules outside the standard library that a file itself imports at its top level."""
    for statement in _parse(path).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for module in _modules(statement, ""):
                if module.partition(".")[0] not in sys.stdlib_module_names:
                    yield module


def _not_python(command: Sequence[str]) -> NotForked:
    """Returns why a program that is no Python script is not forked: numactl, py-spy and others start the Python."""
    # At the end of a command it would have no script, as in `echo python`.
    program = os.path.basename(command[0])
    if any(python_command.is_python(word) for word in command[1:-1]):
        return NotForked(f"{program} starts its Python")
    if program in SHELLS and any(map(_PYTHON_IN_LINE.search, command[1:])):
        return NotForked("a shell runs the command line")
    return NoPython()


def find_program(name: str) -> str | None:
    """The path of a program beside this Python, or on the PATH."""
    return which(name, path=os.path.dirname(sys.executable)) or which(name)


def _python_path(directory: Path) -> list[str]:
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(directory / each) for each in paths if each]


def _is_wanted(name: str, here: Iterable[str]) -> bool:
    top = name.partition(".")[0]
    return may_be_loaded_ahead(name) and top not in here


def _late(reader: _Reader, wanted: Sequence[str]) -> Iterator[str]:
    """Modules that torch imports on use, and those that functions import in any case."""
    if reader.tainted or reader.late_taint or "*" in reader.writes:
        return
    yield from reader.in_functions
    if any(name.partition(".")[0] == "torch" for name in [*wanted, *reader.in_functions]):
        for used, modules in LATE_IMPORTS.items():
            if used in reader.names:
                yield from modules


@dataclass
class _Reader:
    """Reads a script, and the modules of the project that it imports, in the order in which they run.

    Attributes:
        path: Where the script's own modules are: its directory and PYTHONPATH.
        found: Installed modules that are imported in any case.
        early: Those of them that are imported before any function is called or variable of the environment set.
        in_functions: Installed modules that functions import unconditionally.
        names: The names that occur anywhere in the code.
        writes: Names of variables of the environment that the code sets; "*" for one that is computed.
        tainted: Whether a module's own code has changed how later modules are imported.
        late_taint: Whether a function may do so.
    """

    path: list[str]
    found: dict[str, None] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)
    in_functions: dict[str, None] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    tainted: bool = False
    late_taint: bool = False
    _ran: bool = False
    _settling: bool = False
    _read: set[str] = field(default_factory=set)
    _functions: list[tuple[ast.AST, str]] = field(default_factory=list)

    def read_main(self, file: str, package: str) -> None:
        """Reads the script.

        Raises:
            NotForked: Its source is not here.
        """
        try:
            tree = _parse(file)
        except (OSError, SyntaxError, ValueError) as error:
            raise NotForked(
                f"the source of {os.path.basename(file)} cannot be read here, so its imports are not known "
                f"({type(error).__name__})"
            ) from error
        self._body(tree.body, package, main=True)

    def settle(self) -> None:
        """Reads the functions, some of which run between imports, and most after them."""
        self._settling = True
        while self._functions:
            node, package = self._functions.pop()
            for statement in getattr(node, "body", ()):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    for name in _modules(statement, package):
                        self.take(name)
            self._note(node, package)

    def certain(self) -> list[str]:
        """The modules whose import nothing changes that was read; all others may find another search path."""
        return [name for name in self.found if name in self.early or not self.late_taint]

    def take(self, name: str) -> None:
        """Adds a module that is imported now, with its packages."""
        if self._is_own(name):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                self._read_own(".".join(parts[:count]))
        elif name and self._settling:
            self.in_functions[name] = None
        elif name and not self.tainted:
            self.found[name] = None
            if not self._ran:
                self.early.add(name)

    def file_of(self, name: str) -> str | None:
        """The source of a module of the project, or None."""
        steps = name.split(".")
        for directory in self.path:
            base = os.path.join(directory, *steps)
            for candidate in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if os.path.isfile(candidate) and not is_installed_file(candidate):
                    return candidate
        return _editable(name)

    def _is_own(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names and self.file_of(top) is None:
            return False
        return self.file_of(top) is not None or any(
            os.path.isdir(os.path.join(each, top))
            and not is_installed_file(os.path.join(each, top))
            for each in self.path
        )

    def _read_own(self, name: str) -> None:
        file = self.file_of(name)
        if name in self._read or file is None:
            return
        self._read.add(name)
        try:
            tree = _parse(file)
        except (OSError, SyntaxError, ValueError):
            self.tainted = True
            return
        package = name if os.path.basename(file) == "__init__.py" else name.rpartition(".")[0]
        self._body(tree.body, package, main=False)

    def _body(self, statements: Sequence[ast.stmt], package: str, *, main: bool) -> None:
        for statement in statements:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement, package)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.append((statement, package))
                for decorator in statement.decorator_list:
                    self._note(decorator, package)
            elif isinstance(statement, ast.ClassDef):
                for base in (*statement.bases, *statement.decorator_list):
                    self._note(base, package)
                self._body(statement.body, package, main=False)
            elif isinstance(statement, ast.Try):
                self._body(statement.body, package, main=main)
                for rest in (*statement.handlers, *statement.orelse, *statement.finalbody):
                    self._note(rest, package)
            elif isinstance(statement, ast.If) and main and _is_main_guard(statement.test):
                self._body(statement.body, package, main=main)
            elif not (isinstance(statement, ast.If) and _is_type_checking(statement.test)):
                self._note(statement, package)

    def _import(self, statement: ast.Import | ast.ImportFrom, package: str) -> None:
        for name in _modules(statement, package):
            self.take(name)
        if isinstance(statement, ast.ImportFrom):
            self.names.update(each.name for each in statement.names)
            module = _modules(statement, package)[0]
            for each in statement.names:
                inner = f"{module}.{each.name}"
                if self._is_own(module) or is_submodule(inner):
                    self.take(inner)

    def _note(self, node: ast.AST, package: str) -> None:
        """Notes the names in a piece of code that may run, and what it changes."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                self.names.add(inner.id)
            elif isinstance(inner, ast.Attribute):
                self.names.add(inner.attr)
                self._taint(_dotted(inner) in _TAINTS and not _only_reads(inner, node))
            elif isinstance(inner, ast.Call):
                root = _dotted(inner.func).partition(".")[0]
                self._ran = self._ran or root not in sys.stdlib_module_names
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                own = [name for name in _modules(inner, package) if self._is_own(name)]
                # Whether it is imported is not known, and neither is what it does.
                self._taint(bool(own))
        for name in _written(node):
            self.writes.add(name)
            self._ran = True
            self._taint(name == "*")

    def _taint(self, really: bool) -> None:
        if really and self._settling:
            self.late_taint = True
        elif really:
            self.tainted = self._ran = True


def _parse(file: str) -> ast.Module:
    if os.path.getsize(file) > _LARGEST:
        raise ValueError("the file is too large")
    return ast.parse(Path(file).read_bytes(), file)


def _editable(name: str) -> str | None:
    """The source of a module outside of site-packages that this Python imports (an editable install)."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    package = module_source(top)
    return None if package is None or is_installed_file(package) else module_source(name)


def _modules(statement: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The modules that a statement names after `import` or `from`."""
    if isinstance(statement, ast.Import):
        return [each.name for each in statement.names]
    module = statement.module or ""
    # Without a package it fails, as in a script, and what is tried next mostly is the module of that name.
    return [scan.Import(statement.level, module, ()).absolute(package) or module]


def _is_main_guard(test: ast.expr) -> bool:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    words = {ast.unparse(test.left), ast.unparse(test.comparators[0])}
    return isinstance(test.ops[0], ast.Eq) and words == {"__name__", "'__main__'"}


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _only_reads(attribute: ast.Attribute, whole: ast.AST) -> bool:
    """Whether `sys.argv` and the like are only looked at: not assigned to, and no method is called on them."""
    if not _dotted(attribute).startswith("sys."):
        return False
    for node in ast.walk(whole):
        if isinstance(node, ast.Attribute) and node.value is attribute:
            return False
        if isinstance(node, ast.Subscript) and node.value is attribute:
            return isinstance(node.ctx, ast.Load)
    return isinstance(attribute.ctx, ast.Load)


def _written(node: ast.AST) -> Iterator[str]:
    """The names of the environment's variables that code sets; "*" for one that is computed."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            yield from _if_environment(inner.value, [_constant(inner.slice)])
        elif isinstance(inner, ast.AugAssign):
            yield from _if_environment(inner.target, ["*"])
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            yield from _if_environment(inner.func.value, _set_by(inner, inner.func.attr))


def _if_environment(target: ast.expr, names: Iterable[str]) -> Iterable[str]:
    return names if _dotted(target).endswith("environ") else ()


def _set_by(call: ast.Call, method: str) -> Iterator[str]:
    """The keys that a method of a mapping sets."""
    first = call.args[0] if call.args else None
    if method in ("setdefault", "pop", "__setitem__"):
        yield _constant(first)
    elif method == "update":
        if isinstance(first, ast.Dict):
            yield from (_constant(each) for each in first.keys)
        elif first is not None:
            yield "*"
        yield from (each.arg or "*" for each in call.keywords)
    elif method in ("clear", "popitem"):
        yield "*"


def _constant(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "*"

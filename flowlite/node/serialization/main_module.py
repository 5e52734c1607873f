"""The main module of a worker: the program's file, loaded as multiprocessing loads it in a child process.

Python pickles the definitions of a program's file by the name `__main__.NAME`, so `__main__` of a worker must contain
them. Code under `if __name__ == "__main__":` is left out. Unlike in a multiprocessing child, `__name__` still is
"__main__", so classes, loggers and checkpoints have the same names as on the submitting machine.

A notebook has no file. Its `__main__` is filled with the functions, classes and values sent with the call, and its
`__file__` is a small generated file that does the same in processes that the worker starts.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import sys
import types

from ..system.atomic_files import write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PROGRAM = "__flowlite_program__"
"""The name in `__main__` that holds the hash of its file. Where the hash is the same, classes are found by name."""

_FILLED = '''\
"""Written by flowlite: the main module of processes that a worker starts. The task came from a notebook."""

import sys

if {above!r} not in sys.path:
    sys.path.append({above!r})

from {loader} import fill_main

fill_main(globals(), {call!r})
'''


class MainModuleError(Exception):
    """The program's file cannot be loaded; the message names file and line."""


def compile_main(text: str, path: str) -> types.CodeType:
    """Compiles a main module without the code that only runs on the submitting machine.

    Comparisons of `__name__` outside of functions have the results that they have in a multiprocessing child. All other
    code is compiled unchanged.

    Raises:
        SyntaxError: The text is not valid Python.
    """
    if "__name__" not in text:
        return compile(text, path, "exec", dont_inherit=True)
    tree = _MainGuardRewriter().visit(ast.parse(text, path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _MainGuardRewriter(ast.NodeTransformer):
    """Makes comparisons of `__name__` at the top level or in a class body see another name."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        operands = [node.left, *node.comparators]
        if not any(_is_name(each) for each in operands):
            return node
        if len(operands) == 2 and any(_is_main(each) for each in operands):
            if isinstance(node.ops[0], ast.Eq | ast.Is):
                return ast.copy_location(ast.Constant(False), node)
            if isinstance(node.ops[0], ast.NotEq | ast.IsNot):
                return ast.copy_location(ast.Constant(True), node)
        left, *rest = (_other_name(each) for each in operands)
        return ast.copy_location(ast.Compare(left, node.ops, rest), node)

    def visit_Match(self, node: ast.Match) -> ast.AST:
        node.subject = _other_name(node.subject)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"


def _is_main(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "__main__"


def _other_name(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant("__mp_main__"), node) if _is_name(node) else node


def make_main(
    path: str, file: str, *, module: str | None, digest: str, argv: Sequence[str]
) -> types.ModuleType:
    """Makes `__main__` and sets `sys.argv` for a program's file; `run_main` runs the file.

    Args:
        path: The program's path on the submitting machine.
        file: Its path here; processes started from here load it from there.
        module: Its module name, if it was started with `python -m`.
        digest: Hash of the file.
        argv: Arguments of the program, without its name.
    """
    main = fresh_main()
    _describe(main, file, module)
    main.__dict__[PROGRAM] = digest
    sys.argv = [file, *argv]
    return main


def run_main(main: types.ModuleType, text: str, path: str) -> None:
    """Runs a program's file as `main`, without the code that only the program itself runs. Tracebacks name it `path`.

    Raises:
        MainModuleError: The file exited Python.
        BaseException: The file raised this.
    """
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    code = compile_main(text, path)
    if main.__package__:
        __import__(main.__package__)
    try:
        exec(code, main.__dict__)
    except SystemExit as error:
        raise MainModuleError(
            f"{where_in(error, path)}: the file ended Python while it was loaded (SystemExit: {error.code}); what only "
            "the program itself should do belongs under `if __name__ == '__main__':`"
        ) from error


def fillable_main(call: Mapping[str, Any], *, loader: str) -> None:
    """Makes an empty `__main__` for a notebook's objects, with a file for processes started from here.

    `loader` names the module whose `fill_main` loads the call in such a process.
    """
    main = fresh_main()
    # Not at the top: a file of the user's may stand in the way of what it imports.
    from ..system import processes

    above = os.path.abspath(processes.own_place()[0])
    text = _FILLED.format(above=above, loader=loader, call=dict(call))
    path = os.path.join(os.path.dirname(call["bundle"]), f"main-{call['sha256'][:16]}.py")
    write_atomically(path, text)
    main.__file__ = path


def where_in(error: BaseException, path: str) -> str:
    """Returns the line of a file at which an error was raised, as `FILE, line N`."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno
    return path if line is None else f"{path}, line {line}"


def fresh_main() -> types.ModuleType:
    """Returns an empty `__main__`.

    Without `__file__` and `__spec__`, processes that the user's code spawns do not try to run the agent again.
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    # The name that multiprocessing uses in child processes.
    sys.modules["__mp_main__"] = main
    return main


def _describe(main: types.ModuleType, file: str, module: str | None) -> None:
    """Sets the attributes from which multiprocessing loads the same main module in a child."""
    from importlib.machinery import ModuleSpec, SourceFileLoader

    loader = SourceFileLoader(module or "__main__", file)
    main.__file__ = file
    main.__loader__ = loader
    main.__dict__["__cached__"] = None
    main.__annotations__ = {}
    main.__package__ = None
    if module is not None:
        main.__package__ = module.rpartition(".")[0]
        main.__spec__ = ModuleSpec(module, loader, origin=file)

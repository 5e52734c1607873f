"""Finds, from a program's source, the global variables that may have changed since its file was loaded.

A worker loads the file without the code under `if __name__ == "__main__":`. Variables that this code, or a function
that it calls, may have assigned or changed have to be sent. Others must not be sent: a rank or a device that the top
level reads from the environment has another value on the node.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import field

from flowlite.node.quick_dataclass import dataclass

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_REMOTE = frozenset(
    {"remote", "spawn", "map", "starmap", "options", "build_task_config", "_build_task_config"}
)


@dataclass
class Changes:
    """Names of global variables.

    Attributes:
        assigned: Variables that are rebound by code that nodes do not run.
        touched: Variables whose value may have been changed in place: an attribute or item was assigned, a method was
            called, or the value was passed on.
        everything: Whether any variable may have been rebound, since `globals()` or `exec` is used.
    """

    assigned: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    everything: bool = False


def changes_of(text: str) -> Changes:
    """What the code under `if __name__ == …`, and all functions of the file that it calls, may have changed."""
    tree = ast.parse(text)
    functions = _functions(tree)
    found = _Reader()
    for node in _guarded(tree.body):
        found.visit(node)
    followed: set[str] = set()
    while names := (found.called & set(functions)) - followed:
        followed |= names
        for name in sorted(names):
            for function in functions[name]:
                found.enter(function)
    return Changes(found.assigned, found.touched, found.everything)


def _functions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """What may run when a name is used: the function or class itself, methods of that name, and what it decorates.

    Decorated functions count since a command of click or typer is run by calling the group that its decorator names.
    """
    found: dict[str, list[ast.stmt]] = {}
    for node in _top_level(tree.body):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        found.setdefault(node.name, []).append(node)
        for decorator in node.decorator_list:
            for each in ast.walk(decorator):
                if isinstance(each, ast.Name):
                    found.setdefault(each.id, []).append(node)
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(f".{each.name}", []).append(each)
    return found


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, including those in branches and blocks."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.Match):
            yield from _top_level(_blocks(node))


def _blocks(node: ast.stmt) -> Iterator[ast.stmt]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            yield each
        elif isinstance(each, ast.ExceptHandler | ast.match_case):
            yield from each.body


def _guarded(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The code that only the program itself runs."""
    for node in _top_level(body):
        if isinstance(node, ast.If):
            if _asks_for_name(node.test):
                yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.Match):
            if _asks_for_name(node.subject):
                yield from _blocks(node)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign) and any(
            isinstance(each, ast.Compare) and _asks_for_name(each) for each in ast.walk(node)
        ):
            # `__name__ == "__main__" and main()`, or `steps = 5 if __name__ == "__main__" else 1`.
            yield node


def _asks_for_name(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(node))


class _Reader(ast.NodeVisitor):
    """Collects names. `_local` has the local variables of the functions that are being read."""

    def __init__(self) -> None:
        self.assigned: set[str] = set()
        self.touched: set[str] = set()
        self.called: set[str] = set()
        self.everything = False
        self._local: set[str] = set()
        self._inside = False

    def enter(self, node: ast.stmt) -> None:
        """Reads a function or class that is called."""
        self._inside = True
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._function(each)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node)
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._bind(node.name)
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._bind(node.name)
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            self._bind(each.asname or each.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            self._bind(each.asname or each.name)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)
        else:
            self._touch(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._chain(node, touches=not isinstance(node.ctx, ast.Load))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._chain(node, touches=not isinstance(node.ctx, ast.Load))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _REMOTE:
            # A call that runs on nodes changes nothing in this process.
            if not isinstance(node.func.value, ast.Name):
                self.visit(node.func.value)
        elif isinstance(node.func, ast.Attribute | ast.Subscript):
            if isinstance(node.func, ast.Attribute):
                self.called.add(f".{node.func.attr}")
            self._chain(node.func, touches=True)
        else:
            if isinstance(node.func, ast.Name) and node.func.id in ("globals", "exec"):
                self.everything = True
            self.visit(node.func)
        for each in (*node.args, *node.keywords):
            self.visit(each)

    def _chain(self, node: ast.Attribute | ast.Subscript, *, touches: bool) -> None:
        """Records the use of the name that `name.a[b].c` begins with."""
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            if isinstance(inner, ast.Subscript):
                self.visit(inner.slice)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self.visit(inner)
        elif touches:
            self._touch(inner.id)
        else:
            self._call(inner.id)

    def _bind(self, name: str) -> None:
        if not self._inside and name not in self._local:
            self.assigned.add(name)

    def _touch(self, name: str) -> None:
        if name not in self._local:
            self.touched.add(name)
        self._call(name)

    def _call(self, name: str) -> None:
        if name not in self._local:
            self.called.add(name)

    def _function(self, node: _Function) -> None:
        outer, inside = self._local, self._inside
        stored, declared = _variables(node)
        self._local = (outer | stored) - declared
        self._inside = True
        self.assigned |= stored & declared
        body = node.body if isinstance(node.body, list) else [node.body]
        for each in (*node.args.defaults, *filter(None, node.args.kw_defaults), *body):
            self.visit(each)
        self._local, self._inside = outer, inside


def _variables(node: _Function) -> tuple[set[str], set[str]]:
    """The names that a function binds, and those that it declares as global."""
    arguments = node.args
    stored = {
        each.arg
        for each in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            *filter(None, (arguments.vararg, arguments.kwarg)),
        )
    }
    declared: set[str] = set()
    body: list[ast.AST] = list(node.body) if isinstance(node.body, list) else [node.body]
    while body:
        each = body.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(each.name)
            continue
        if isinstance(each, ast.Lambda):
            continue
        if isinstance(each, ast.Global):
            declared |= set(each.names)
        elif isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
            stored.add(each.id)
        elif isinstance(each, ast.alias):
            stored.add(each.asname or each.name.partition(".")[0])
        elif isinstance(each, ast.ExceptHandler) and each.name:
            stored.add(each.name)
        body += ast.iter_child_nodes(each)
    return stored, declared

"""Recognises Python files that do not use flowlite, which are run as commands and never imported."""

from __future__ import annotations

import ast
from pathlib import Path


def is_plain(path: Path) -> bool:
    """Whether a Python file neither imports flowlite nor decorates a function with `@….function`.

    The file is not executed. A file that cannot be read or parsed is not plain, since importing it shows the error.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    return not any(_is_of_flowlite(node) for node in ast.walk(tree))


def _is_of_flowlite(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(name.name.partition(".")[0] == "flowlite" for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "flowlite"
    # The app may be imported from a module of the user: `from common import app`.
    return isinstance(node, ast.Attribute) and node.attr == "function"

"""Python files that are scripts: nothing in them is for flowlite, so they are run as commands and never imported."""

from __future__ import annotations

import ast
from pathlib import Path


def is_plain(path: Path) -> bool:
    """Whether a Python file neither imports flowlite nor decorates a function with `@….function`.

    Nothing of the file is executed. A file that cannot be read or parsed is not plain: to import it tells why.
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
    # The app may come from a module of the user's: `from common import app`.
    return isinstance(node, ast.Attribute) and node.attr == "function"

"""Detects a user's file that hides a module of Python's standard library.

A script's directory comes first in `sys.path`. If it has a `random.py`, every library that imports `random` gets that
file, and the error appears in the library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named() -> Iterator[None]:
    """A block that imports modules. If such a file makes that fail, it raises an ImportError that names the file."""
    try:
        yield
    except Exception as error:
        if hidden := hidden_module(error):
            raise ImportError(hidden) from None
        raise


def hidden_module(error: BaseException) -> str:
    """A sentence that names the file which hides a module of Python's, and so led to an error or to its cause.

    Returns "" if there is no such file.
    """
    return _named_by(error) or (_named_by(error.__cause__) if error.__cause__ else "")


def _named_by(error: BaseException) -> str:
    if isinstance(error, ImportError):
        name, path = error.name, error.path
    elif isinstance(error, AttributeError):
        name, path = getattr(error.obj, "__name__", None), getattr(error.obj, "__file__", None)
    else:
        return ""
    if not isinstance(name, str) or not isinstance(path, str):
        return ""
    module = name.partition(".")[0]
    own = os.path.dirname(os.path.abspath(os.__file__))
    if module not in sys.stdlib_module_names or os.path.abspath(path).startswith(own + os.sep):
        return ""
    return (
        f"{path} has the name of Python's own module {module!r} and is imported in its place, also by libraries that "
        "need the other one; rename it"
    )

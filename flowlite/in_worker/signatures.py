"""Signatures of functions, also of those whose annotations name what only type checkers import.

From Python 3.14 on, annotations are evaluated when they are read, and a name that is not defined is an error then.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """As `inspect.signature`. An annotation whose names are not defined is a `ForwardRef`."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)

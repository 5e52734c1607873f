"""Annotations of functions and classes, also those that name what only type checkers import.

From Python 3.14 on, annotations are evaluated when they are read, and a name that is not defined is an error then.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any


def annotations_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function or class; all of them as text if one cannot be evaluated."""
    if sys.version_info >= (3, 14):
        import annotationlib

        try:
            return annotationlib.get_annotations(owner)
        except Exception:
            return annotationlib.get_annotations(owner, format=annotationlib.Format.STRING)
    return inspect.get_annotations(owner)

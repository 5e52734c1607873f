"""Options of a task that take one value or several, any of which will do. Standard library only."""

from __future__ import annotations

import re
from typing import Literal

ANY = "any"
"""The value of `provider` for all providers that are set up."""
PREFER: Literal["prefer"] = "prefer"
"""The value of `spot` for machines on spot where there are some, and on demand elsewhere."""


_PATTERN = re.compile(r"[*?\[]")


def is_pattern(region: str) -> bool:
    """Whether a value of `region` is a pattern, as in "us-*"."""
    return _PATTERN.search(region) is not None


def values_of(option: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The values of an option that takes one or several; none if it is not given."""
    return () if option is None else (option,) if isinstance(option, str) else option

"""Durations as text."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Returns `45 s`, `3 min` or `12 h`, rounded for people."""
    if seconds < 120:
        return f"{round(seconds, 2):g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

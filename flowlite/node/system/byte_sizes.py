"""Formats numbers of bytes for people."""

from __future__ import annotations


def human_size(size: float) -> str:
    """Returns a size such as `3.4 GB`, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"

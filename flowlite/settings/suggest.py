"""Suggests the most similar known name for an unknown one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1, closeness: float = 0.6) -> list[str]:
    """The known words that are similar to `word`, best first. Case, dashes and underscores do not count."""
    from difflib import get_close_matches

    plain = {_plain(k): k for k in known}
    found = get_close_matches(_plain(word), list(plain), n=count, cutoff=closeness)
    return [plain[f] for f in found]


def did_you_mean(word: str, known: Iterable[str], closeness: float = 0.6) -> str:
    """A clause for an error message: `; did you mean 'x'?`, or "" if no known word is similar.

    Names may be similar by chance, so they need more `closeness` (up to 1) than options.
    """
    found = nearest(word, known, closeness=closeness)
    return f"; did you mean {found[0]!r}?" if found else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

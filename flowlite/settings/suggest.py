"""The nearest right name for a wrong one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1, closeness: float = 0.6) -> list[str]:
    """Known words that look like `word`, best first; case, dashes and underscores do not count."""
    from difflib import get_close_matches

    plain = {_plain(k): k for k in known}
    found = get_close_matches(_plain(word), list(plain), n=count, cutoff=closeness)
    return [plain[f] for f in found]


def did_you_mean(word: str, known: Iterable[str], closeness: float = 0.6) -> str:
    """A clause to hang on an error: `; did you mean 'x'?`, or "" where nothing is near.

    Args:
        word: What was given.
        known: What could have been meant.
        closeness: How alike they must be, up to 1; for names, which may be alike by chance, more than for options.
    """
    found = nearest(word, known, closeness=closeness)
    return f"; did you mean {found[0]!r}?" if found else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

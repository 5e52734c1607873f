"""The nearest right name for a wrong one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Known words that look like `word`, best first; case, dashes and underscores do not count."""
    from difflib import get_close_matches

    plain = {_plain(k): k for k in known}
    found = get_close_matches(_plain(word), list(plain), n=count, cutoff=0.61)
    return [plain[f] for f in found]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A clause to hang on an error: `; did you mean 'x'?`, or "" where nothing is near."""
    found = nearest(word, known)
    return f"; did you mean {found[0]!r}?" if found else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")

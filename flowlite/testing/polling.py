"""How often a test looks at what it waits for."""

from __future__ import annotations

_LONGEST_PAUSE = 2.0


def pause_after(took: float, every: float) -> float:
    """Returns the pause before the next look, in seconds, where the last one took `took`.

    A look that takes long, since it starts a program, is repeated less often than `every` says: who waits must not keep
    those busy that he waits for.
    """
    return max(every, min(2 * took, _LONGEST_PAUSE))

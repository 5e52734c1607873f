"""Files and symbolic links of a working directory, checked before they are copied: none may lead out of it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def leads_out(path: str, target: str) -> bool:
    """Whether a link could lead out of the directory that its path is relative to.

    `..` counts only before the first name: behind one it starts wherever that name leads, and that can be another link.

    Args:
        path: The link's path. All of its parents are directories.
        target: What the link contains.
    """
    if not target or target.startswith("/") or "\0" in target:
        return True
    depth, named = path.count("/"), False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if named or depth < 0:
                return True
        elif part not in ("", "."):
            named = True
    return False


def as_relative(path: str, target: str, tops: Iterable[str]) -> str:
    """Returns what a link contains; relative to the link if that is an absolute path in its directory.

    Args:
        path: The link's path in the directory.
        target: What the link contains.
        tops: Paths of the directory.
    """
    for top in tops:
        if target == top or target.startswith(f"{top}/"):
            return os.path.relpath(target, os.path.dirname(os.path.join(top, path)))
    return target


def conflict(ends: Sequence[str], directories: Sequence[str] = ()) -> str:
    """Returns what is wrong with a list of paths; "" if each can exist beside all others.

    Args:
        ends: The paths of files and links.
        directories: The paths of empty directories.
    """
    known = set(ends)
    if len(known) != len(ends):
        return "it names a path twice"
    if both := known.intersection(directories):
        return f"it names {min(both)!r} as a directory, too"
    # Looks at each directory once, however many files it has.
    looked_at: set[str] = set()
    for path in (*ends, *directories):
        above = path.rpartition("/")[0]
        while above and above not in looked_at:
            if above in known:
                return f"{path!r} leads through {above!r}, which is no directory"
            looked_at.add(above)
            above = above.rpartition("/")[0]
    return ""

"""What .pth files may have read of the environment: `site` has run their lines before a fork server can look on.

So every word of capitals in quotes in these lines, and in the modules that they have imported, counts as the name of a
variable that was read. It matters only if a worker has another value for it.
"""

from __future__ import annotations

import os
import re
import sys

from ..system.atomic_files import names_in, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_QUOTED = re.compile(r"""["']([A-Z][A-Z0-9_]+)["']""")
_LARGEST = 1 << 20


def variables() -> dict[str, str]:
    """Returns the names of variables that may have been read, each with who has read it."""
    found: dict[str, str] = {}
    for who, text in (*_lines(), *_modules()):
        for name in _QUOTED.findall(text):
            found.setdefault(name, who)
    return found


def _lines() -> Iterator[tuple[str, str]]:
    for directory in _directories():
        for name in sorted(names_in(directory)):
            if name.endswith(".pth"):
                text = text_of(os.path.join(directory, name), _LARGEST)
                code = [
                    each for each in text.splitlines() if each.startswith(("import ", "import\t"))
                ]
                yield name, "\n".join(code)


def _modules() -> Iterator[tuple[str, str]]:
    """The source of the modules that are here before anything but `site` has imported any."""
    directories = tuple(f"{each}{os.sep}" for each in _directories())
    for name, module in tuple(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and path.startswith(directories):
            yield name, text_of(path, _LARGEST)


def _directories() -> list[str]:
    return [
        each for each in sys.path if os.path.basename(each) in ("site-packages", "dist-packages")
    ]

"""Programs that are sent to a host as text, to whichever Python is there, with the node's modules that they need."""

from __future__ import annotations

import functools
from pathlib import Path

import flowlite.node

NODE = Path(flowlite.node.__file__).parent
"""Where those modules lie here."""
# A module is what Python makes of its file; its packages are there for `from .. import`.
_LOADER = """\
import sys, types
def load(name, text):
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        full = ".".join(parts[:end])
        if full not in sys.modules:
            module = sys.modules[full] = types.ModuleType(full)
            module.__package__, module.__path__ = full, []
            if end > 1:
                setattr(sys.modules[".".join(parts[:end - 1])], parts[end - 1], module)
    sys.modules[name].__package__ = ".".join(parts[:-1])
    exec(compile(text, name, "exec"), sys.modules[name].__dict__)
"""


@functools.cache
def program(path: Path, *modules: str) -> bytes:
    """The text of a program, and in front of it modules of `flowlite.node`, each after those that it imports."""
    lines = [_LOADER]
    for each in modules:
        text = NODE.joinpath(*each.split(".")).with_suffix(".py").read_text()
        lines.append(f"load({f'flowlite.node.{each}'!r}, {text!r})\n")
    return ("".join(lines) + path.read_text()).encode()

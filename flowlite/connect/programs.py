"""Programs that are sent to a node as text, and the command that starts `agent.pyz` there.

A program sent as text includes the modules of `flowlite.node` that it needs, since the node may not have flowlite yet.
`agent.pyz` is stored on a node under its hash. Before it is started, its directory and content are checked
(`node/system/ownership.py`), because it runs as the user, with the user's secrets.
"""

from __future__ import annotations

import ast
import functools
import threading
import tokenize
from pathlib import Path

import flowlite.node

UNSAFE = 106
"""Exit status: other users can write to the directory. The last line of standard error names the path and the reason.
"""
CURE = "make it yours alone (`chown`, `chmod go-w`), or choose another directory"
_PARSING = threading.Lock()
NODE = Path(flowlite.node.__file__).parent
"""Local directory of the node's modules."""
# Makes modules from their source texts; their parent packages exist so that `from .. import` works.
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
# Exit status 126 is what a shell returns for a program that cannot be executed: the program is then sent again.
_START = f"""\
import sys
from hashlib import sha256
path = sys.argv[1]
wrong = problem(os.path.dirname(path), "../tasks", "../envs")
if wrong:
    sys.stderr.write(wrong + "\\n")
    sys.exit({UNSAFE})
try:
    with open(path, "rb") as file:
        whole = sha256(file.read()).hexdigest() == os.path.basename(path).partition(".")[0]
except OSError as error:
    sys.stderr.write(path + ": " + error.strerror + "\\n")
    sys.exit(2)
if not whole:
    sys.stderr.write(path + " is not what its name says\\n")
    sys.exit(126)
del sys.argv[0]
sys.path.insert(0, path)
sys.path.append(path + "/packed")
from flowlite_node.__main__ import main
sys.exit(main())
"""
# The check of `problem` in `node/system/ownership.py`, for nodes where no Python is known. $1 is the directory. It
# may belong to another user who has closed it to all others.
SAFE_IN_SHELL = """\
safe() {
  d=$1 me=$(id -u) nobody=$(cat /proc/sys/kernel/overflowuid)
  while read -r _ outside _; do [ "$outside" = 0 ] && nobody=0; done </proc/self/uid_map
  until [ -d "$d" ]; do
    [ -L "$d" ] && { echo "$d is a link that leads to no directory" >&2; return 1; }
    d=${d%/*}; [ -n "$d" ] || d=/
  done
  led=$(readlink -f "$d") || { echo "$d cannot be looked at" >&2; return 1; }
  set --
  for d in "$d" "$led"; do
    until [ -z "$d" ]; do set -- "$@" "$d"; [ "$d" = / ] && break; d=${d%/*}; [ -n "$d" ] || d=/; done
  done
  stat -c '%u %a %n' "$@" | while read -r who mode place; do
    case $who in 0|"$me"|"$nobody") ;; *) echo "$place belongs to uid $who" >&2; return 1;; esac
    [ -L "$place" ] && continue
    case $mode in [1357]???) continue;; *[2367]?|*[2367]) ;; *) continue;; esac
    echo "$place can be written by others (mode $mode)" >&2; return 1
  done
}
"""


def unsafe(why: str) -> str:
    """The error text for a program that ended with `UNSAFE`, with a remedy."""
    return f"others could change what runs as you there: {why}; {CURE}"


@functools.cache
def sent(path: Path, *modules: str) -> bytes:
    """The text of a program, preceded by the given modules of `flowlite.node`, in the order of their imports."""
    lines = [_LOADER]
    lines += [f"load({f'flowlite.node.{each}'!r}, {_text(each)!r})\n" for each in modules]
    return ("".join(lines) + path.read_text()).encode()


def started(python: str, program: str, *words: str) -> list[str]:
    """The command that starts `agent.pyz` on a node after it has checked the directory and content.

    Args:
        program: Path of the program on the node; its file name is its hash.
    """
    return [python, "-I", "-S", "-c", _start(), program, *words]


@functools.cache
def _start() -> str:
    return f"{_text('system.ownership')}\n{_START}"


def _text(module: str) -> str:
    """The source of a node's module without docstrings and comments, since it is sent with every command."""
    # Hosts are reached by many threads. One of them parses a module, and the others wait for it: CPython 3.11 keeps the
    # parser's recursion depth in one place, and two concurrent parsers end in "SystemError: AST constructor recursion
    # depth mismatch".
    with _PARSING:
        return _parsed(module)


@functools.cache
def _parsed(module: str) -> str:
    # Not by `ast.unparse`: that of Python 3.12 writes f-strings which no older Python on a node can read.
    source = NODE.joinpath(*module.split(".")).with_suffix(".py").read_text()
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(iter(list(lines)).__next__):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            lines[row - 1] = f"{lines[row - 1][:column].rstrip()}\n".lstrip("\n")
        elif token.type == tokenize.NL and token.line == "\n":
            lines[row - 1] = ""
    for each in ast.walk(ast.parse(source)):
        if isinstance(each, ast.Module | ast.FunctionDef) and ast.get_docstring(each) is not None:
            first = each.body[0]
            rows = slice(first.lineno - 1, first.end_lineno)
            lines[rows] = ["" for _ in lines[rows]]
            if len(each.body) == 1:
                lines[first.lineno - 1] = f"{' ' * first.col_offset}pass\n"
    return "".join(lines)

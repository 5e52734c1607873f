"""A fork server that is a Python held just before it runs its script, so that a forked worker is that very Python.

The fork server is started with the command of the workers, `python -u train.py`, with a placeholder for the script.
`site` imports `hook/sitecustomize.py`, and there the process stays, imports what the script will import, and forks. A
worker puts the script in the place of the placeholder and returns (`worker/script.py`), and the interpreter does itself
what is left: it puts the script's directory into `sys.path`, makes `__main__`, runs the script, reports its exception
and exits. No frame of flowlite is below the script, and its options, exit codes and tracebacks are Python's own.
"""

from __future__ import annotations

import os
import sys

from ..config import python_command
from ..config.python_command import NotForked
from ..system import processes
from ..worker import interpreter_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PAUSED = "FLOW_PAUSED"
"""Variable of a held Python: where flowlite's package is, and its name. It is removed before anything is imported."""
_ORDER = "FLOW_PAUSED_ORDER"
_HOOK = os.path.join(os.path.dirname(__file__), "hook")


def start_of(argv: Sequence[str], python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns how the Python of a command is started, as the entry "script" of a fork server's spec.

    Args:
        argv: The command.
        python: The nodes' own Python.
        environment: The environment of the workers, as far as it is known.

    Returns:
        {"executable": program on disk, "command": its command line up to the script or module, "target": that,
        "module": whether it is one, "words": the command line up to and with it, as it was written, "name": the
        process's name, "replaces": how many words of argv this stands for}.

    Raises:
        NotForked: It is no command of the nodes' own Python, or one that a forked process cannot stand for.
    """
    from shutil import which

    path = environment.get("PATH")
    if python_command.is_python(argv[0]):
        parsed = python_command.parse(argv)
        program, target, name = argv[0], parsed.module or parsed.script, argv[0]
        command = [program, *parsed.options, *(["-m"] if parsed.module else [])]
        module, replaces = bool(parsed.module), len(argv) - len(parsed.arguments)
    else:
        script = argv[0] if "/" in argv[0] else which(argv[0], path=path) or ""
        if not script:
            raise NotForked(f"{argv[0]} is not on the PATH")
        if not os.path.isabs(script):
            raise NotForked(f"{argv[0]} is a relative path")
        try:
            with open(script, "rb") as file:
                program = python_command.interpreter_of(file.readline(4096))
        except OSError as error:
            raise NotForked(f"{script} cannot be read: {error.strerror}") from error
        except NotForked as reason:
            raise NotForked(f"{script} runs on its own: {reason}") from None
        command, target, module, replaces, name = [program], script, False, 1, script
    executable = program if "/" in program else which(program, path=path)
    if executable is None or not _same(executable, python):
        raise NotForked(
            f"{program} is {executable or 'not on the PATH'}, and the nodes' Python is {python}"
        )
    python_command.refuse_variables(environment)
    if any(not os.path.isabs(each) for each in _entries(environment)):
        raise NotForked("PYTHONPATH has a relative path")
    if len(target) > interpreter_target.LONGEST // 2:
        raise NotForked("its name is too long")
    if any(each in _HOOK for each in (os.pathsep, "\n")):
        raise NotForked(f"flowlite's files are in {_HOOK!r}, which cannot be in PYTHONPATH")
    return {
        "executable": executable,
        "command": command,
        "target": target,
        "module": module,
        "words": [*argv[:replaces]] if python_command.is_python(argv[0]) else [program, script],
        "name": os.path.basename(name),
        "replaces": replaces,
    }


def _entries(environment: Mapping[str, str]) -> list[str]:
    path = environment.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def _same(one: str, other: str) -> bool:
    """Whether two paths are one interpreter in one environment."""
    beside = os.path.dirname(os.path.abspath(one)) == os.path.dirname(os.path.abspath(other))
    return beside and os.path.realpath(one) == os.path.realpath(other)


def command_line(start: Mapping[str, Any]) -> list[str]:
    """Returns the command that starts the Python that is held."""
    return [*start["command"], _placeholder(start)]


def _placeholder(start: Mapping[str, Any]) -> str:
    return interpreter_target.placeholder(start["target"], module=start["module"])


def environment_of(environment: Mapping[str, str], order: str, listener: int) -> dict[str, str]:
    """Returns the environment in which a Python is held. `order` is the file of the fork server's spec."""
    above, package = processes.own_place()
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join([_HOOK, *_entries(environment)]),
        PAUSED: f"{above}\n{package}",
        _ORDER: f"{listener}\n{order}\n{environment.get('PYTHONPATH', '')}",
    }


def hold(hook: str, above: str) -> None:
    """Runs the fork server in this process, and returns only in a worker that is to run the script."""
    import json
    import socket

    from . import process_state, server

    changed = process_state.change_before_site_ended()
    listener, order, path = os.environ.pop(_ORDER).split("\n", 2)
    del os.environ[PAUSED]
    with open(order, encoding="utf-8") as file:
        spec = json.load(file)
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        del os.environ["PYTHONPATH"]
    for each in (hook, above):
        sys.path.remove(each)
        sys.path_importer_cache.pop(each, None)
    from ..worker import script

    script.get_ready()
    start = spec["script"]
    target = interpreter_target.find(_placeholder(start), module=start["module"])
    if target is None:
        spec = {**spec, "why": "the configuration of this Python is not understood"}
    elif changed:
        spec = {**spec, "why": f"a .pth file of this Python {changed}"}
    try:
        server.serve(spec, socket.socket(fileno=int(listener)), _take_customizations)
    except script.Begin as raised:
        # Without the frames of the fork server.
        begin = raised.with_traceback(None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    assert target is not None
    script.become(begin, target)


def _take_customizations() -> None:
    """Imports the `sitecustomize` and `usercustomize` of this Python, as `site` would have done now."""
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    sys.modules.setdefault("sitecustomize", ours)
    if sys.modules["site"].ENABLE_USER_SITE:
        try:
            __import__("usercustomize")
        except ImportError as error:
            if error.name != "usercustomize":
                raise

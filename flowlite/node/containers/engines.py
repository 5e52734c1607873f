"""docker and podman: which of them works on this node, and their command lines. Pure but for `find` and `ask`."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from ..quick_dataclass import dataclass
from ..system import processes

_ANSWER_SECONDS = 30.0
_WORDS = 400
# The program in the container. It sets variables, finds a Python, and runs the rest in it.
SHELL = "/bin/sh"
_CAP_SYS_RESOURCE = 24
STACK_BYTES = 67108864


class EngineError(OSError):
    """No container can be run here; the text says why, and what to do."""


class Engine(NamedTuple):
    """A container engine that works.

    Attributes:
        program: Its path.
        kind: "docker" or "podman": the dialect of its command line (`docker` may be podman by another name).
        rootless: Whether it runs as the user, who is root inside (docker) or can keep the same id (podman).
    """

    program: str
    kind: str
    rootless: bool = False


class EngineResult(NamedTuple):
    """The result of an engine's command."""

    code: int
    out: str
    words: str


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The settings of a container.

    Attributes:
        name: The name by which it is found again.
        user: User id, group id, and further groups whose files it may use.
        binds: Bind mounts: source on the node, path inside, and whether it is read-only.
        gpus: Whether it gets all GPUs; `CUDA_VISIBLE_DEVICES` selects the task's.
        devices: Further devices, such as /dev/infiniband.
        limits: Whether the limits on locked memory and stack may be lifted.
    """

    name: str
    image: str
    user: tuple[int, int, tuple[int, ...]]
    binds: tuple[tuple[str, str, bool], ...] = ()
    gpus: bool = False
    devices: tuple[str, ...] = ()
    limits: bool = True


def run_command(engine: Engine, outline: ContainerSettings, program: Sequence[str]) -> list[str]:
    """Returns the command line that runs `program`, the arguments of a shell, in a container.

    No value of a variable is on it.
    """
    words = [engine.program, "run", "--rm", "--pull", "never", "--name", outline.name]
    # As on the node itself: addresses, shared memory, and processes that the agent can see and signal.
    words += ["--network", "host", "--ipc", "host", "--pid", "host"]
    if outline.limits:
        words += ["--ulimit", "memlock=-1", "--ulimit", f"stack={STACK_BYTES}"]
    if engine.kind == "podman":
        # Its default is 2048 for all threads of the container. docker has none.
        words += ["--pids-limit", "-1"]
    # For stacks of hanging ranks; and to use the user's files whatever their SELinux label.
    words += ["--cap-add", "SYS_PTRACE", "--security-opt", "label=disable"]
    words += _user(engine, outline)
    if outline.gpus:
        every = ["--gpus", "all"] if engine.kind == "docker" else ["--device", "nvidia.com/gpu=all"]
        words += every
    for device in outline.devices:
        words += ["--device", device]
    for source, target, read_only in outline.binds:
        # As key=value pairs, since a path may contain a colon.
        quoted = f"type=bind,source={_csv(source)},target={_csv(target)}"
        words += ["--mount", f"{quoted},readonly" if read_only else quoted]
    words += ["--workdir", "/", "--entrypoint", SHELL, outline.image]
    return [*words, *program]


def exec_command(
    engine: Engine, name: str, program: Sequence[str], *, terminal: bool = False
) -> list[str]:
    """Returns the command line that runs another program in a running container."""
    return [engine.program, "exec", "-it" if terminal else "-i", name, *program]


def _user(engine: Engine, outline: ContainerSettings) -> list[str]:
    """Returns the options to run as the agent's user, so that written files belong to that user."""
    uid, gid, groups = outline.user
    if engine.rootless and engine.kind == "docker":
        return []
    words = ["--user", f"{uid}:{gid}"]
    if engine.rootless:
        words = ["--userns", "keep-id", *words, "--group-add", "keep-groups"]
    elif uid != 0:
        words += [word for group in groups if group != gid for word in ("--group-add", str(group))]
    return words


def _csv(path: str) -> str:
    if "," in path or '"' in path:
        raise EngineError(
            f"{path!r} cannot be shown in a container: its name has a comma or a quote"
        )
    return path


async def find() -> Engine:
    """Returns the first of docker and podman that answers.

    Raises:
        EngineError: Neither does.
    """
    problems = []
    for name in ("docker", "podman"):
        program = shutil.which(name)
        if program is None:
            problems.append(f"{name} is not installed")
            continue
        kind = "podman" if "podman" in (await ask([program, "--version"])).out.lower() else name
        what = (
            "{{.SecurityOptions}}" if kind == "docker" else "rootless={{.Host.Security.Rootless}}"
        )
        told = await ask([program, "info", "--format", what])
        if told.code == 0:
            word = "name=rootless" if kind == "docker" else "rootless=true"
            return Engine(program, kind, word in told.out)
        problems.append(f"{name}: {told.words or f'exit code {told.code}'}")
    raise EngineError(
        f"image= needs docker or podman on this node, and neither works ({'; '.join(problems)}). Install one of them, "
        "let this user use it, or leave image out"
    )


async def ask(words: Sequence[str], seconds: float = _ANSWER_SECONDS) -> EngineResult:
    """Runs a command of an engine to its end."""
    try:
        async with asyncio.timeout(seconds):
            code, out, err = await processes.run_group(*words, env=environment())
    except TimeoutError:
        return EngineResult(124, "", f"no answer within {seconds:g} s")
    except OSError as error:
        return EngineResult(127, "", f"{words[0]}: {error.strerror}")
    said = " ".join(err.decode(errors="replace").split())
    return EngineResult(code, out.decode(errors="replace"), said[-_WORDS:])


def environment() -> dict[str, str]:
    """Returns the environment for the engine's own processes.

    They have no variables of the task, since they must outlive its processes to clean up after a container.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("FLOW_")}


def may_lift_limits(engine: Engine) -> bool:
    """Whether the engine can give a container higher limits than this process has.

    podman has only this process's rights.
    """
    if engine.kind == "docker":
        return not engine.rootless
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            mine = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return not engine.rootless and bool(int(mine, 16) >> _CAP_SYS_RESOURCE & 1)

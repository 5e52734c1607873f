"""`image=`: the fork server, and so every worker, in a container."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..python_env import environments
from ..system import processes
from ..system.atomic_files import write_atomically
from . import engines
from .engines import ContainerSettings, EngineError

PULL_SECONDS = 3600.0
START_SECONDS = 120.0
END_SECONDS = 10.0
EXIT_NO_PYTHON = 78
_LOOK_AGAIN = 0.02
_INFINIBAND = "/dev/infiniband"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The node's variables about its network and GPUs. All others are determined by the image.
_FROM_NODE = re.compile(
    r"(?:NCCL|GLOO|UCX|FI|OMPI_MCA|RDMAV|MLX5)_\w+|CUDA_DEVICE_ORDER|FLOW_\w+|TZ"
)
# $1 sets variables, $2 is the wanted version ("" for any that is new enough); the rest is what Python is to run.
_SCRIPT = r"""
. "$1"; wanted=$2; shift 2
say='import sys; print("%d.%d %d" % (sys.version_info[:2] + (sys.version_info >= (3, 11),)))'
for p in python python3 "python$wanted" /opt/conda/bin/python /usr/local/bin/python3 /usr/bin/python3 \
    "/usr/local/bin/python$wanted" "/usr/bin/python$wanted"; do
  told=$("$p" -I -S -c "$say" 2>/dev/null) || continue
  case "$told" in
    "${wanted:-3}"*" 1") FLOW_CONTAINER=1 exec "$p" "$@";;
  esac
  found="$found ${told% *}"
done
echo "flowlite-pythons:$found" >&2
exit 78
"""


class Container:
    """The container of one node in one attempt."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        self._config = config
        self._paths = paths
        self._image = str((config.container or {})["image"])
        self._name = f"flowlite-{config.task}-n{config.node_rank}-a{config.attempt}"
        spec = config.python_spec or {}
        self._wanted = "" if spec.get("any") else str(spec.get("python", ""))
        self._engine: engines.Engine | None = None
        self._image_id = ""
        self._child: asyncio.subprocess.Process | None = None

    async def start(self, spec: Mapping[str, Any], scene: Mapping[str, Any]) -> None:
        """Starts the fork server of `spec` in a container that shows the volumes of `scene`.

        Raises:
            EngineError: It cannot be run; the text says why.
        """
        if scene.get("within") is not None:
            raise EngineError(
                "mounts and image go together only where buckets are mounted by root; this node mounts them for the "
                "user alone. Leave one of them out"
            )
        self._engine = await engines.find()
        await self._have_image()
        await self._run(spec, scene)

    def entry(self) -> dict[str, Any]:
        """Returns the data that `exec` needs to enter the container."""
        assert self._engine is not None
        return {"engine": list(self._engine), "name": self._name}

    async def close(self) -> None:
        """Waits until the container has ended. Its fork server has been released before."""
        if self._child is None or self._engine is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._child.wait()
        except TimeoutError:
            await engines.ask([self._engine.program, "rm", "--force", self._name])

    # The image

    def _program(self, order: Path) -> list[str]:
        """Returns what Python is to run in the container. It first adds packages to the image's, if there are any."""
        warm = processes.own_command("", "warm", str(order))[1:]
        if not self._adds_packages:
            return warm
        config, place = self._config, self._paths.directory
        spec = dict(config.python_spec or {})
        spec["upon"] = self._image_id
        spec["directory"] = str(environments.directory(spec, config.cache))
        Path(spec["directory"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(place / "container.json", json.dumps(spec))
        return processes.own_command("", "pythons", str(place), *warm)[1:]

    @property
    def _adds_packages(self) -> bool:
        return (self._config.python_spec or {}).get("requirements") is not None

    async def _have_image(self) -> None:
        assert self._engine is not None
        program, image = self._engine.program, self._image
        look = [program, "image", "inspect", "--format", "{{.Id}}", image]
        found = await engines.ask(look)
        self._image_id = found.out.strip()
        if found.code == 0:
            return
        pulled = await engines.ask([program, "pull", "--quiet", image], PULL_SECONDS)
        if pulled.code != 0:
            raise EngineError(
                f"the image {image} is not on this node, and {self._engine.kind} cannot pull it: {pulled.words}. "
                "Check its name, log this user in to the registry, or load the image on the node"
            )
        self._image_id = (await engines.ask(look)).out.strip()

    # The container

    async def _run(self, spec: Mapping[str, Any], scene: Mapping[str, Any]) -> None:
        assert self._engine is not None
        path, log = str(spec["socket"]), Path(spec["log"])
        # Not beside the socket: without a listener there, it would be removed as that of a killed fork server.
        order = self._paths.directory / "forkserver.json"
        write_atomically(order, json.dumps({**spec, "environment": {}, "inside": True}))
        with suppress(FileNotFoundError):
            # Of an earlier attempt, whose fork server was killed.
            os.unlink(path)
        variables = self._paths.directory / "container.env"
        write_atomically(variables, self._variables(spec))
        program = self._program(order)
        words = engines.run_command(
            self._engine,
            self._outline(spec, scene, program),
            ["-c", _SCRIPT, "sh", str(variables), self._wanted, *program],
        )
        # A container of that name can only be left over from a crash of the machine.
        await engines.ask([self._engine.program, "rm", "--force", self._name])
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._child = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=engines.environment(),
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        await self._listening(path, log)

    def _outline(
        self, spec: Mapping[str, Any], scene: Mapping[str, Any], program: list[str]
    ) -> ContainerSettings:
        assert self._engine is not None
        config, home = self._config, str(self._paths.home)
        binds = [(home, home, False)]
        for place in (os.path.dirname(spec["socket"]), config.workdir):
            if place and os.path.isdir(place) and not _within(place, binds):
                binds.append((place, place, False))
        ours = [program[0] if program[0] != "-c" else str(Path(__file__).parents[2])]
        if self._adds_packages:
            spec = config.python_spec or {}
            place = str(environments.directory(spec, config.cache))
            binds.append((place, place, False))
            ours += [spec["uv"]] if spec.get("uv") else []
        binds += [(each, each, True) for each in ours if not _within(each, binds)]
        for volume in sorted(scene["volumes"], key=lambda each: len(each["path"])):
            binds.append((volume["source"], volume["path"], bool(volume.get("read_only"))))
        return ContainerSettings(
            name=self._name,
            image=self._image,
            user=(os.getuid(), os.getgid(), tuple(sorted(os.getgroups()))),
            binds=tuple(binds),
            gpus=bool(config.gpus),
            devices=(_INFINIBAND,) if os.path.isdir(_INFINIBAND) else (),
            limits=engines.may_lift_limits(self._engine),
        )

    def _variables(self, spec: Mapping[str, Any]) -> str:
        """Returns the script of variables for the container's shell. They override the image's variables."""
        found = {name: value for name, value in os.environ.items() if _FROM_NODE.fullmatch(name)}
        found["FLOW_TASK_ID"] = self._config.task
        if os.getuid() != 0:
            # The image does not know this user, but programs ask for a user name and a home directory.
            name = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
            found |= {"HOME": str(self._paths.home), "USER": name, "LOGNAME": name}
        if self._adds_packages:
            place = environments.directory(self._config.python_spec or {}, self._config.cache)
            found["UV_CACHE_DIR"] = os.environ.get("UV_CACHE_DIR", str(place / "cache"))
        found.update(spec["environment"])
        return _exports(found)

    async def _listening(self, path: str, log: Path) -> None:
        assert self._child is not None
        loop = asyncio.get_running_loop()
        seconds = PULL_SECONDS if self._adds_packages else START_SECONDS
        until = loop.time() + seconds
        while not _answers(path):
            if self._child.returncode is not None:
                raise EngineError(self._why_not(log))
            if loop.time() > until:
                raise EngineError(
                    f"a container of {self._image} did not come up within {seconds:g} s; see {log} on this node"
                )
            await asyncio.sleep(_LOOK_AGAIN)

    def _why_not(self, log: Path) -> str:
        assert self._child is not None
        assert self._engine is not None
        said = log.read_bytes().decode(errors="replace").strip()
        if self._child.returncode == EXIT_NO_PYTHON and "flowlite-pythons:" in said:
            have = said.rpartition("flowlite-pythons:")[2].split()
            wanted = f"Python {self._wanted}" if self._wanted else "Python 3.11 or newer"
            return (
                f"the image {self._image} has no {wanted} ({', '.join(sorted(set(have))) or 'none found'}); functions "
                "need the version they were submitted from, and every task needs 3.11 or newer in its image"
            )
        if (
            self._child.returncode == environments.EXIT_NO_ENVIRONMENT
            and environments.ERROR_MARK in said
        ):
            return (
                f"in the image {self._image}: {said.rpartition(environments.ERROR_MARK)[2].strip()}"
            )
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return (
            f"a container of {self._image} cannot be started with {self._engine.kind} (exit code "
            f"{self._child.returncode}): {' '.join(lines[-3:])[:400]}"
        )


def _exports(variables: Mapping[str, str]) -> str:
    """Returns shell lines that set the variables. Variables whose names a shell cannot set are left out."""
    return "".join(
        f"export {name}={shlex.quote(value)}\n"
        for name, value in variables.items()
        if _NAME.fullmatch(name)
    )


def _within(place: str, binds: list[tuple[str, str, bool]]) -> bool:
    return any(place == each[1] or place.startswith(f"{each[1]}/") for each in binds)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError:
            return False
    return True


def enter(entry: Mapping[str, Any], home: str, argv: list[str]) -> int:
    """Replaces this process with a command in the running container of a node. Returns only on failure.

    Args:
        entry: The data that the agent wrote for `exec`: {"container", "environment", "workdir"}.
    """
    engine = engines.Engine(*entry["container"]["engine"])
    variables = Path(home) / f".exec-{os.getpid()}.env"
    write_atomically(variables, _exports(entry["environment"]))
    script = '. "$1"; rm -f "$1"; cd "$2" 2>/dev/null || cd "$3"; shift 3; exec "$@"'
    program = [
        engines.SHELL,
        "-c",
        script,
        "sh",
        str(variables),
        entry.get("workdir") or home,
        home,
    ]
    terminal = os.isatty(0) and os.isatty(1)
    words = engines.exec_command(
        engine, entry["container"]["name"], [*program, *argv], terminal=terminal
    )
    try:
        os.execve(words[0], words, engines.environment())
    except OSError as error:
        variables.unlink(missing_ok=True)
        sys.stderr.write(f"flowlite: cannot run {words[0]}: {error.strerror}\n")
        return 126

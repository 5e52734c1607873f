"""The sidecar that mounts the leader's volumes on every other node, with one `sshfs` for each.

`share-mount ATTEMPT_DIR PORT WITHIN`, started by the agent (`agent_side.py`). Its standard input is a pipe that only
the agent holds: when it ends, for any reason, the volumes are unmounted. As root it has its own mount namespace (or
that of the process WITHIN), so no mount can be left on the machine even if all processes are killed at once. It reports
lines of JSON:

    {"event": "mounted", "pid": own, "private": bool, "sources": {name: directory}}
    {"event": "failed", "why": text}
    {"event": "trouble", "text": text}

`share-tunnel ATTEMPT_DIR PORT VOLUME` is the program that sshfs runs instead of ssh.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from shutil import which

from ..config.agent_config import AgentConfig, AttemptPaths
from ..mount_namespace import mount_readiness, namespace, unmount
from ..protocol.framing import VOLUME_ROLE, WireError
from ..protocol.stream import dial
from ..sidecar.process_side import SidecarFailed, ending, report
from ..system import processes
from .confined_sftp import INSIDE

MOUNT_SECONDS = 30.0
STOP_SECONDS = 5.0
_CUTS = frozenset(" ,\\")
_DEVICE = "/dev/fuse"
OPTIONS = (
    # All nodes see a node's writes at once: nothing is cached except what the kernel has open.
    *(
        "dir_cache=no",
        "attr_timeout=0",
        "entry_timeout=0",
        "negative_timeout=0",
        "ac_attr_timeout=0",
    ),
    *("reconnect", "idmap=user", "default_permissions", "fsname=flowlite", "subtype=sshfs"),
)
CHOICES = (
    "Choose: install sshfs on every host; or give the hosts a directory that they share, and name it as shared_dir of "
    "the pool; or leave `volumes` out and keep results with `checkpoint=`"
)


UNREACHED = "node 0 cannot be reached"
"""The beginning of the tunnel's error message if the leader cannot be reached."""


def missing_here() -> str:
    """Returns what this node lacks to mount volumes, for people; "" if nothing."""
    if which("sshfs", path=_search_path()) is None:
        return "sshfs is not installed here"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"this user cannot open {_DEVICE} here"
    return ""


class SshfsSidecar:
    """Mounts the shared volumes of one node until its standard input ends."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths, port: int, within: int) -> None:
        self._paths = paths
        self._within = within
        self._port = port
        self._over = threading.Event()
        self._top = paths.directory / "shared"
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._volumes = [v for v in config.volumes if v.get("share") == "sshfs"]

    def run(self) -> None:
        """Mounts the volumes, reports it, watches them until the agent closes the pipe, and cleans up.

        Raises SidecarFailed.
        """
        self._over = ending()
        try:
            if lacking := missing_here():
                name = self._volumes[0]["name"]
                raise SidecarFailed(
                    f"volume {name!r} cannot be had from node 0: {lacking}. {CHOICES}"
                )
            if self._within:
                namespace.enter(self._within)
            private = bool(self._within) or (os.geteuid() == 0 and not namespace.enter_private())
            sources = {str(v["name"]): self._mount(str(v["name"])) for v in self._volumes}
            report("mounted", pid=os.getpid(), private=private, sources=sources)
            self._watch()
        finally:
            self._unmount()

    def _mount(self, name: str) -> str:
        source = self._top / name
        source.mkdir(mode=0o700, parents=True, exist_ok=True)
        unmount.unmount(source)
        tunnel = self._paths.directory / f"tunnel-{name}.sh"
        if _CUTS & set(str(tunnel)):
            raise SidecarFailed(
                f"volume {name!r} cannot be had from node 0: sshfs takes no blank, comma or backslash in "
                f"{self._paths.directory}. Give the node another directory"
            )
        command = processes.own_command(
            sys.executable, "share-tunnel", str(self._paths.directory), str(self._port), name,
            flags=("-I", "-S"),
        )  # fmt: skip
        processes.write_program(tunnel, command)
        options = ",".join([f"ssh_command={tunnel}", *OPTIONS])
        log = self._paths.directory / f"share-{name}.log"
        program = which("sshfs", path=_search_path())
        assert program is not None
        with open(log, "ab") as said:
            self._programs[name] = subprocess.Popen(
                [program, "-f", "-o", options, f"leader:{INSIDE}", str(source)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self._paths.directory,
                env={**os.environ, "PATH": _search_path()},
                preexec_fn=partial(processes.die_with_parent, os.getpid()),
            )
        if why := self._await(self._programs[name], source):
            last = log.read_text(errors="replace").strip().splitlines()[-2:]
            raise SidecarFailed(
                f"volume {name!r} cannot be had from node 0: {why}"
                f"{' (' + ' / '.join(last) + ')' if last else ''}",
                passing=why.startswith(mount_readiness.LATE)
                or any(UNREACHED in line for line in last),
            )
        return str(source)

    def _await(self, program: subprocess.Popen[bytes], source: Path) -> str:
        """Waits until a volume can be listed. Returns why it cannot be, or ""."""
        until = time.monotonic() + MOUNT_SECONDS
        if why := mount_readiness.await_mount(program, source, MOUNT_SECONDS, self._over):
            return why
        if self._over.is_set():
            return "this node was told to end"
        listed = mount_readiness.listed(source, max(1.0, until - time.monotonic()))
        if isinstance(listed, list):
            return ""
        return f"it cannot be listed: {listed or 'it does not answer'}"

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            for name, program in list(self._programs.items()):
                if program.poll() is not None:
                    del self._programs[name]
                    report("trouble", text=f"volume {name!r} is lost: sshfs ended; using it fails")

    def _unmount(self) -> None:
        for name, program in self._programs.items():
            unmount.unmount(self._top / name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(STOP_SECONDS)
            if program.poll() is None:
                program.kill()
                program.wait()
        unmount.unmount_below(self._top)


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def main(arguments: list[str]) -> int:
    """`share-mount ATTEMPT_DIR PORT WITHIN`: runs the sidecar; WITHIN is 0 if there is no such process."""
    paths = AttemptPaths(Path(arguments[0]))
    code = 0
    try:
        config = AgentConfig.from_json(paths.config.read_bytes())
        SshfsSidecar(config, paths, int(arguments[1]), int(arguments[2])).run()
    except (OSError, ValueError) as error:
        report("failed", why=str(error), passing=getattr(error, "passing", False))
        code = 1
    sys.stderr.flush()
    # Does not wait for a thread that is blocked by a hung file system.
    os._exit(code)


def tunnel(arguments: list[str]) -> int:
    """`share-tunnel ATTEMPT_DIR PORT VOLUME …`: bridges standard input and output to the leader."""
    paths, volume = AttemptPaths(Path(arguments[0])), arguments[2]
    config = AgentConfig.from_json(paths.config.read_bytes())
    leader = json.loads(paths.leader.read_bytes())
    try:
        place = (str(leader["address"]), int(arguments[1]))
        stream = dial(config, paths, place, VOLUME_ROLE, volume)
        with stream.network:
            stream.bridge(0, 1)
    except (OSError, WireError) as error:
        sys.stderr.write(f"{UNREACHED} for volume {volume!r}: {error}\n")
        return 1
    return 0

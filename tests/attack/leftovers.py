"""What of flowlite is on a host, or runs on the client, after a task: by what the kernel and the disk say."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from pathlib import Path

from flowlite.testing.hosts import Host
from tests.attack.stage import NODE_HOME, Stage
from tests.helpers import processes_of

_OUTPUT = re.compile(r"r\d+\.(out|err|result)|agent\.log|report\.json")
_GREETING_SECONDS = 5.0
_KINDS = ("process", "socket", "secret", "directory", "file")
_SECRETS = {"secrets.json", "env.json", "storage.json", "packages.json", "secret"}


def left_over(stage: Stage) -> list[str]:
    """Everything, by host, in words; processes first."""
    found = [f"{host.name}: {what}" for host in stage.cluster for what in _on_host(stage, host)]
    found += [f"client: {what}" for what in _processes_here(stage)]
    return sorted(found, key=lambda what: _KINDS.index(what.split()[1]))


def condition(stage: Stage) -> list[str]:
    """What runs on each host, and what its sshd says to the client, by means that are none of ours."""
    return [
        f"{host.name}: sshd says {_greeting(stage, host)}; runs: {', '.join(filter(None, map(_words, host.pids())))}"
        for host in stage.cluster
    ]


def _greeting(stage: Stage, host: Host) -> str:
    with stage.cluster.enter_laptop():
        try:
            with socket.create_connection((host.address, 22), _GREETING_SECONDS) as connection:
                return repr(connection.recv(100))
        except OSError as error:
            return f"nothing ({error})"


def _processes_here(stage: Stage) -> list[str]:
    elsewhere = {pid for host in stage.cluster for pid in host.pids()}
    return [f"process {_words(pid)}" for pid in processes_of(stage.id) if pid not in elsewhere]


def _on_host(stage: Stage, host: Host) -> list[str]:
    found = [f"process {words}" for words in map(_words, host.pids()) if words and not _own(words)]
    sockets = Path(f"/proc/{host.pid}/net/unix").read_text().splitlines()
    names = {line.split()[-1] for line in sockets if "@flowlite" in line}
    found += [f"socket {name}" for name in sorted(names)]
    root = host.root
    # The lock is one file for all tasks of a user.
    files = [path for path in root.glob("tmp/flowlite-*/*") if path.name != "lock"]
    found += [f"file {_shown(path, root)}" for path in files]
    home = root / NODE_HOME
    found += [f"secret {_shown(path, root)}" for path in home.rglob("*") if path.name in _SECRETS]
    found += [
        f"directory {_shown(path, root)} with {_inside(path)}"
        for path in home.glob("tasks/*")
        if not _is_kept(stage, path)
    ]
    return found


def _is_kept(stage: Stage, home: Path) -> bool:
    """Whether a directory holds what ranks wrote and could not be brought here, as the task says, and no more."""
    lacking = [text for kind, text in stage.events if kind == "lacking"]
    files = [path.name for path in home.rglob("*") if not path.is_dir()]
    only_output = all(_OUTPUT.fullmatch(name) for name in files)
    return only_output and any(home.name in text for text in lacking)


def _inside(directory: Path) -> str:
    names = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
    return ", ".join(names[:20]) or "nothing in it"


def _own(words: str) -> bool:
    # sshd's listener, and not its sessions.
    return words.split()[0] in ("tini", "sleep") or words.startswith(
        ("/usr/sbin/sshd", "sshd: /usr/sbin/sshd")
    )


def _shown(path: Path, root: Path) -> str:
    return f"/{path.relative_to(root)}".replace("/root/", "~/")


def _words(pid: int) -> str:
    with suppress(OSError):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return ""
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return " ".join(command.split())[:200]
    return ""

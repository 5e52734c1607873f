"""Runs Slurm's commands, on this machine or on a login node over SSH.

They run in an environment of their own: variables such as `SLURM_*`, `SBATCH_*` or `SQUEUE_*` that are set here, or in
the job that this program runs in, have no effect, and none of our variables reach the job.
"""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.connect.bounded import MOST_SAID
from flowlite.errors import AnswerTooLong, NodeUnreachable, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import place
from flowlite.provider import LaunchPending
from provider_adapters.slurm.settings import CLUSTERS
from provider_adapters.ssh.patience import Patience

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.connect.values import Completed

SECONDS = 60.0
_NOT_FOUND = 127
_REMEMBERED_SECONDS = 3600.0
# Prints where Slurm is, in a format that no output of a login script looks like.
_PROBE = r"""
say() { printf 'flowlite:%s:%s\n' "$1" "$2"; }
look='command -v sbatch; printf "%s\n" "$PATH" "$SLURM_CONF" "$SLURM_CONF_SERVER"'
look="$look"'; printf "%s\n" "${SBATCH_CLUSTERS:-$SLURM_CLUSTERS}"; env | grep "^SBATCH_" | tr "\n" " "'
found=$(sh -c "$look" 2>/dev/null)
case $found in /*) ;; *) found=$(bash -lc "printf '@\n'; $look" 2>/dev/null </dev/null | sed '1,/^@$/d');; esac
at=$(printf '%s\n' "$found" | sed -n 1p)
case $at in /*) say sbatch "$at";; esac
# A site's or user's own sbatch, or squeue, may be elsewhere than the other commands.
path=$(printf '%s\n' "$found" | sed -n 2p)
at=$(PATH=$path command -v scontrol)
if [ -x "${at%/*}/squeue" ]; then at=${at%/*}/squeue; else at=$(PATH=$path command -v squeue); fi
case $at in /*) say squeue "$at";; esac
say path "$path"
say conf "$(printf '%s\n' "$found" | sed -n 3p)"
say server "$(printf '%s\n' "$found" | sed -n 4p)"
asked=@CLUSTER@
[ -n "$asked" ] || asked=$(printf '%s\n' "$found" | sed -n 5p)
own() {
  unset SLURM_CLUSTERS SLURM_CONF
  conf=$(printf '%s\n' "$found" | sed -n 3p); [ -z "$conf" ] || export SLURM_CONF="$conf"
  PATH=$path timeout 20 "${at%/*}/scontrol" show config 2>/dev/null | sed -n 's/^ClusterName *= *//p'
}
[ -z "$asked" ] || { say clusters "$asked"; say cluster "$(own)"; }
say asked "$(printf '%s\n' "$found" | sed -n 6p)"
say home "$HOME"
say user "$(id -un)"
say uid "$(id -u)"
say host "$(hostname)"
for p in @PYTHON@ python3 python3.14 python3.13 python3.12 python3.11; do
  if "$p" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null >/dev/null 2>&1; then
    say python "$("$p" -I -S -c 'import sys; print(sys.executable)')"; break
  fi
done
"""
# Defaults that apply unless the user asks for something else; sbatch gives these variables precedence over the script.
_DEFAULTS = ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION")
_HERE = ("SLURM_CONF", "SLURM_CONF_SERVER", *_DEFAULTS)
_STARTERS = ("sbatch", "srun")
# What scancel says of a job that has ended.
_OVER = ("invalid job id", "already completing or completed", "not running", "is not pending")
_DENIED = "access/permission denied"
_NO_CLUSTER = "no cluster '"
_DOWN = (
    "unable to contact slurm controller",
    "unable to contact the slurm controller",
    "connection refused",
    "connection timed out",
    "socket timed out",
    "backup controller",
    "zero bytes were transmitted",
    "slurm controller (connect failure)",
    "temporarily unable to accept",
    # Of a cluster that has to be looked up, when slurmdbd is down.
    "can't be reached now",
    # munged is started anew, or too busy. It may be the answer that was not read.
    "protocol authentication error",
    "message receive failure",
)


# Prints the lines of a command that have a word, and how it ended.
_ONLY = """\
word=$1; shift
{ "$@"; printf '%s ended with %s\n' "$word" "$?"; } | grep -a -F -e "$word"
"""


class ToolMissing(ProviderError):
    """One of Slurm's tools is not there."""


class SlurmUnreachable(LaunchPending):
    """Slurm, or the login node, does not answer now. The request may have been carried out."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a login node reports.

    Attributes:
        sbatch: Absolute path of that command.
        squeue: Absolute path of that command; the others are in the same directory. "" for the directory of `sbatch`.
        python: A Python that runs our program; "" if there is none.
        asked: Variables such as `SBATCH_ACCOUNT` that are set for every login, or here.
        server: Where the configuration is fetched from (`SLURM_CONF_SERVER`); "" for the usual place.
        clusters: The cluster to ask: that of the settings, or else of `SLURM_CLUSTERS` there; "" for `cluster`.
        cluster: The cluster that is asked by default; "" if it is not known, or no cluster is named.
    """

    sbatch: str
    path: str
    conf: str
    home: str
    user: str
    uid: int
    host: str
    python: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    squeue: str = ""
    server: str = ""
    clusters: str = ""
    cluster: str = ""


class SlurmLogin:
    """The commands of one cluster.

    Args:
        written: As in `user@cluster`; "" for this machine. With the cluster that is asked, if one is named
            (`SlurmSettings.place`).
        directory: Where its facts are cached.
        connection: The connection to the login node, in tests.
        ssh_config: OpenSSH configuration in which it is looked up; "" for the usual one.
    """

    def __init__(
        self,
        written: str,
        directory: Path,
        connection: Connection | None = None,
        python: str = "",
        ssh_config: str = "",
    ) -> None:
        self.written = written
        self.target, _, self._cluster = written.partition(CLUSTERS)
        self._ssh_config = ssh_config
        self._directory = directory
        self._given = self._connection = connection
        self._python = python
        self._facts: Facts | None = None
        self._patience = Patience()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The cluster's name in messages."""
        return f"{self.target or 'this machine'}{self._cluster and f' (cluster {self._cluster})'}"

    @property
    def key(self) -> str:
        """The name of the cluster's files."""
        import hashlib

        return hashlib.sha256(self.written.encode()).hexdigest()[:16] if self.written else "here"

    @property
    def connection(self) -> Connection:
        """The shared connection to the login node. Raises ConfigError."""
        with self._lock:
            if self._connection is None:
                self._connection = _connect(self.target, self._ssh_config)
            return self._connection

    def another(self) -> Connection:
        """A new connection, to be closed by the caller. Raises ConfigError."""
        return self._given or _connect(self.target, self._ssh_config)

    @property
    def facts(self) -> Facts:
        """The login node's facts: where Slurm is, and the user. Raises ProviderError."""
        if self._facts is None:
            self._facts = self._remembered() or self._ask()
        return self._facts

    @property
    def defaults(self) -> dict[str, str]:
        """The options that jobs have unless something else is asked for, from `SBATCH_ACCOUNT` and such."""
        return {
            name.removeprefix("SBATCH_").lower(): value
            for name, value in self.facts.asked.items()
            if value
        }

    def argv(self, tool: str, *words: str) -> list[str]:
        """The complete command for one of Slurm's tools."""
        facts = self.facts
        environment = {
            "HOME": facts.home,
            "USER": facts.user,
            "LOGNAME": facts.user,
            "PATH": facts.path or "/usr/local/bin:/usr/bin:/bin",
            # Not for tools that start processes, which pass their environment on.
            **({} if tool in _STARTERS else {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}),
            **({"SLURM_CONF": facts.conf} if facts.conf else {}),
            **({"SLURM_CONF_SERVER": facts.server} if facts.server else {}),
            **({"SLURM_CLUSTERS": other} if (other := self._other_cluster(facts)) else {}),
        }
        program = facts.sbatch
        if tool != "sbatch":
            program = posixpath.join(posixpath.dirname(facts.squeue or facts.sbatch), tool)
        return ["env", "-i", *(f"{k}={v}" for k, v in environment.items()), program, *words]

    def try_(
        self,
        tool: str,
        *words: str,
        input: bytes | None = None,
        seconds: float = SECONDS,
        only: str = "",
    ) -> Completed:
        """Runs one of Slurm's tools to its end. Raises Silent, and ProviderError if the tool does not exist.

        Args:
            only: A word. Lines of the output without it are dropped on the login node.
        """
        argv = self.argv(tool, *words)
        if only:
            done = _as_ended(self.run(["sh", "-c", _ONLY, "sh", only, *argv], seconds=seconds))
        else:
            done = self.run(argv, input=input, seconds=seconds)
        said = done.stderr.decode("utf-8", "replace").lower()
        if done.code == _NOT_FOUND:
            self.forget()
            raise ToolMissing(
                f"{tool} is not where it was on {self.name}; try again, or look whether this is a login node of the "
                "cluster"
            )
        if done.code and any(each in said for each in _DOWN) and _NO_CLUSTER not in said:
            raise SlurmUnreachable(f"Slurm does not answer on {self.name}: {last_line(done)}", 5.0)
        return done

    def ask(self, tool: str, *words: str, seconds: float = SECONDS, only: str = "") -> str:
        """The output of one of Slurm's tools. Raises ProviderError with the tool's own message, and AnswerTooLong."""
        done = self.try_(tool, *words, seconds=seconds, only=only)
        if done.code:
            raise ProviderError(f"{tool} failed on {self.name}: {last_line(done)}")
        return done.stdout.decode("utf-8", "replace")

    def ask_if_shown(self, tool: str, *words: str) -> str:
        """As `ask`; "" where the cluster shows that to administrators only (`PrivateData`)."""
        done = self.try_(tool, *words)
        if done.code and _DENIED in last_line(done).lower():
            return ""
        if done.code:
            raise ProviderError(f"{tool} failed on {self.name}: {last_line(done)}")
        return done.stdout.decode("utf-8", "replace")

    def cancel(self, *arguments: str) -> None:
        """Has `scancel` signal or end jobs. Those that have ended are no error. Raises ProviderError."""
        done = self.try_("scancel", *arguments)
        said = last_line(done)
        if done.code and not any(each in said.lower() for each in _OVER):
            raise ProviderError(f"scancel failed on {self.name}: {said}")

    def run(
        self, argv: Sequence[str], *, input: bytes | None = None, seconds: float = SECONDS
    ) -> Completed:
        """Runs any command on the login node.

        Raises:
            Silent: It does not answer now.
            NodeUnreachable: It cannot be reached until a person fixes something, such as an SSH key.
        """
        try:
            done = self.connection.run(argv, input=input, timeout=seconds)
            self._patience.forget(self.name)
            return done
        except TimeoutError:
            raise SlurmUnreachable(
                f"{self.name} did not answer within {seconds:.0f} s", 5.0
            ) from None
        except AnswerTooLong:
            # It does answer.
            raise
        except NodeUnreachable as error:
            if not self._patience.is_left(self.name, error):
                raise
            raise SlurmUnreachable(f"the login node does not answer: {error}", 5.0) from error

    def forget(self) -> None:
        """Drops the cached facts."""
        self._facts = None
        with suppress(OSError):
            self._file.unlink()

    # Helpers

    def _other_cluster(self, facts: Facts) -> str:
        """The cluster to name to every command; "" for the one that is asked by default. Raises ProviderError."""
        # Here, the variable that counts is that of the shell in which the task was submitted, and is in the settings.
        asked = facts.clusters if self.target else self._cluster
        if "," in asked or asked == "all":
            raise ProviderError(
                f"SLURM_CLUSTERS is {asked} on {self.target}: set cluster under [slurm] to one of them"
            )
        # Another one is looked up in slurmdbd, each time.
        return "" if asked == facts.cluster else asked

    @property
    def _file(self) -> Path:
        if self.target:
            return self._directory / f"login-{self.key}.json"
        # A node of a job has the same home, and may have Slurm elsewhere. In a job, SLURM_CONF is that of the node.
        import hashlib

        # A variable that holds in one shell, such as the account of a project, does not hold in another.
        told = "\n".join([os.uname().nodename, *(os.environ.get(name, "") for name in _HERE)])
        return (
            self._directory
            / f"login-{self.key}-{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
        )

    def _remembered(self) -> Facts | None:
        with suppress(OSError, ValueError, TypeError):
            if not 0 <= time.time() - self._file.stat().st_mtime < _REMEMBERED_SECONDS:
                return None
            return Facts(**json.loads(self._file.read_bytes()))
        return None

    def _ask(self) -> Facts:
        import shlex

        script = _PROBE.replace("@PYTHON@", shlex.quote(self._python or "python3"), 1)
        script = script.replace("@CLUSTER@", shlex.quote(self._cluster), 1)
        done = self.run(["sh", "-c", script])
        told: dict[str, str] = {}
        for line in done.stdout[-MOST_SAID:].decode("utf-8", "replace").splitlines():
            if line.startswith("flowlite:"):
                name, _, value = line.removeprefix("flowlite:").partition(":")
                told[name] = value.strip()
        if not told.get("sbatch"):
            raise ProviderError(self._no_slurm(done))
        asked = dict(each.split("=", 1) for each in told.get("asked", "").split() if "=" in each)
        facts = Facts(
            sbatch=told["sbatch"],
            path=told.get("path", ""),
            conf=told.get("conf", ""),
            home=told.get("home", "/"),
            user=told.get("user", ""),
            uid=int(told.get("uid") or -1),
            host=told.get("host", ""),
            python=told.get("python", ""),
            asked={name: value for name, value in asked.items() if name in _DEFAULTS},
            squeue=told.get("squeue", ""),
            server=told.get("server", ""),
            clusters=told.get("clusters", ""),
            cluster=told.get("cluster", ""),
        )
        self._remember(facts)
        return facts

    def _no_slurm(self, done: Completed) -> str:
        if self.target:
            return (
                f"there is no sbatch on {self.target}, also not for a login shell: set login under [slurm] to a login "
                f"node of the cluster. It said: {last_line(done)}"
            )
        return (
            "there is no sbatch on this machine: run flow on a login node of the cluster, or say how to reach one: "
            'login = "user@cluster" under [slurm]'
        )

    def _remember(self, facts: Facts) -> None:
        with suppress(OSError):
            place(json.dumps(asdict(facts)).encode(), str(self._file))


def last_line(done: Completed) -> str:
    """The last line that a command printed, as a clause."""
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return said[-1].strip() if said else f"exit code {done.code}"


def _as_ended(done: Completed) -> Completed:
    """What `_ONLY` has printed, as the output of the command, with its exit code."""
    *lines, last = done.stdout.splitlines(keepends=True) or [b""]
    code = last.rpartition(b" ")[2].strip()
    # Without the last line it was killed, or there is no grep.
    return dataclasses.replace(
        done, code=int(code) if code.isdigit() else done.code or 1, stdout=b"".join(lines)
    )


def _connect(written: str, ssh_config: str) -> Connection:
    if not written:
        from flowlite.connect.local import LocalConnection

        return LocalConnection()
    from flowlite.connect.ssh.connection import SshConnection
    from flowlite.connect.ssh.targets import resolve_target

    return SshConnection(resolve_target(written, ssh_config or None))

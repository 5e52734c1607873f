"""The table `[slurm]` of the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings.parse import at_least, duration_seconds
from flowlite.settings.provider_settings import SSH_CONFIG_VARIABLE, ProviderSettings, read_table
from flowlite.spec import slurm as options_of

CLUSTERS = " --clusters="
"""What is between login and cluster in the text that names both."""
_SHARED = "~/.flowlite-slurm"
_NODE_DIR = "/tmp/flowlite-slurm-%u"
_LEASE = 300.0
_SHORTEST_LEASE = 60.0
_SIGNAL = 120
_LONGEST_SIGNAL = 65535
# It contains Unix sockets, whose paths are limited to 107 bytes.
_LONGEST_NODE_DIR = 60
_CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
# Paths are inserted into the batch script unquoted.
_PATH = re.compile(r"(?:~|/)[A-Za-z0-9_./@%+=:,-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """The settings of Slurm.

    Attributes:
        login: Where its commands run, as in `user@cluster`; "" for this machine.
        cluster: The cluster that they ask, where a login node serves several; "" for the one that they ask by default.
        shared_dir: A directory that the login node and all nodes share, as a path on the login node; "" for none.
        node_dir: A directory on the disk of each node; %u is the user id.
        python: A Python on the nodes; "" to search for one.
        lease: Seconds without any contact after which the nodes end the job.
        signal_seconds: How long before the end of its time a job is warned.
        ssh_config: OpenSSH configuration in which `login` is looked up; "" for the usual one.
        options: Options of Slurm for tasks that do not set them.
    """

    login: str = ""
    cluster: str = ""
    shared_dir: str = _SHARED
    node_dir: str = _NODE_DIR
    python: str = ""
    lease: float = _LEASE
    signal_seconds: int = _SIGNAL
    ssh_config: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Login and cluster as one text, as `SlurmLogin` takes them and launches record them."""
        return f"{self.login}{CLUSTERS}{self.cluster}" if self.cluster else self.login


def from_environment(found: ProviderSettings, environment: Mapping[str, str]) -> ProviderSettings:
    """The settings, with the submitting user's OpenSSH configuration and cluster if they name none."""
    if not {"login", "cluster"} & found.values.keys():
        # As sbatch prefers them. Other commands, and other shells, have to ask the same cluster.
        named = [each for each in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS") if environment.get(each)]
        if named:
            found = found.with_value("cluster", environment[named[0]], named[0])
    path = environment.get(SSH_CONFIG_VARIABLE)
    if not path or "ssh_config" in found.values:
        return found
    return found.with_value("ssh_config", path, SSH_CONFIG_VARIABLE)


def read_settings(settings: ProviderSettings) -> SlurmSettings:
    """Parses and checks the settings.

    Raises:
        ConfigError: An unknown key or an invalid value; the message says where it is.
    """
    readers = {**_READERS, **options_of.OPTIONS}
    found = read_table(settings.values, readers, "[slurm]", settings.origin_of)
    options = {key: found.pop(key) for key in [*found] if key not in _READERS}
    return SlurmSettings(**found, options=options)


# Readers of single values. A reader returns the value, or raises ValueError with what is allowed.


def _login(value: object) -> str:
    from flowlite.connect.ssh.targets import parse_written

    what = "a login node of the cluster, as in 'user@cluster'"
    if not isinstance(value, str) or not value.strip():
        raise ValueError(what)
    try:
        parse_written(value.strip())
    except ConfigError:
        raise ValueError(what) from None
    return value.strip()


def _cluster(value: object) -> str:
    if not isinstance(value, str) or not _CLUSTER.fullmatch(value) or value == "all":
        raise ValueError("the name of one cluster, as `sacctmgr show clusters` lists it")
    return value


def _file(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a path")
    return value


def _shared(value: object) -> str:
    if value in ("", "none", False):
        return ""
    return _path(value)


def _path(value: object) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value) or "/../" in f"{value}/":
        raise ValueError("an absolute path, or one that begins with ~/, without blanks or quotes")
    if value == "~" or (value.startswith("~") and not value.startswith("~/")):
        raise ValueError("an absolute path, or one that begins with ~/")
    return value.rstrip("/") or "/"


def _node_dir(value: object) -> str:
    path = _path(value)
    if len(path) > _LONGEST_NODE_DIR or path == "/":
        raise ValueError(f"a path of at most {_LONGEST_NODE_DIR} characters below /")
    return path


def _signal(value: object) -> int:
    seconds = int(duration_seconds(value))
    if not 0 < seconds <= _LONGEST_SIGNAL:
        raise ValueError(f"a number of seconds from 1 to {_LONGEST_SIGNAL}")
    return seconds


_READERS: dict[str, Callable[[object], Any]] = {
    "login": _login,
    "cluster": _cluster,
    "shared_dir": _shared,
    "node_dir": _node_dir,
    "python": _path,
    "lease": at_least(_SHORTEST_LEASE),
    "signal_seconds": _signal,
    "ssh_config": _file,
}

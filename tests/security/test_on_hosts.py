"""What others on the same machines can see and reach of a task: nothing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.api.task import Task
from tests.helpers import eventually, kill_processes_of_home

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

pytestmark = pytest.mark.needs("hosts")

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "hunter2-correct-horse-battery"
NODES, PER_NODE = 3, 2
# Says the secret, as careless programs do.
PROGRAM = (
    "import os, time; print('the token is', os.environ['API_TOKEN'], flush=True); time.sleep(600)"
)
# Prints every file below the given places that has one of the words in it and that this user can read.
_SEEK = r"""
import os, stat, sys
words = [word.encode() for word in sys.stdin.read().split()]
begun = float(sys.argv[1])
def look(path):
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 22)
    except OSError:
        return
    if any(word in content for word in words):
        print(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        for name in ("cmdline", "environ"):
            look(f"/proc/{pid}/{name}")
for top in sys.argv[2:]:
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_ctime > begun - 5:
                look(path)
"""
# The tests and their Python may lie in one of the places, too; hosts see them read-only.
_SHOWN = (f"{sys.prefix}/", f"{sys.base_prefix}/", f"{ROOT}/")
_PLACES = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/home", "/root", "/etc", "/var/log")


@dataclass(frozen=True)
class Scene:
    """A gang on three hosts whose ranks are all running. Tests look at it and change nothing.

    Attributes:
        begun: Unix time before anybody was told a secret; what is older holds none.
    """

    hosts: Cluster
    home: Path
    task: Task[Any]
    begun: float

    @property
    def words(self) -> list[str]:
        """What nobody else may see: the user's secret, and the gang's."""
        gang = (self.home / "tasks" / self.task.id / "secret").read_text().strip()
        return [SECRET, gang]

    @property
    def leader(self) -> Host:
        """The host of node 0."""
        return next(h for h in self.hosts if h.address == self.task.nodes[0].address)

    def seen(self, host: Host, user: str) -> list[str]:
        """Files on a host that have one of the words in them and that this user can read."""
        command = ["python3", "-c", _SEEK, str(self.begun), *_PLACES]
        done = host.exec(command, input=" ".join(self.words), user=user, timeout=300)
        assert done.returncode == 0, done.stderr
        return [path for path in done.stdout.split() if not path.startswith(_SHOWN)]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """One gang for all tests of this module."""
    from flowlite.testing.hosts import Cluster

    home = Path(tempfile.mkdtemp(prefix="flow-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(kill_processes_of_home, home)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("FLOW_HOME", str(home))
        patch.setenv("API_TOKEN", SECRET)
        hosts = stack.enter_context(Cluster(NODES))
        stack.enter_context(hosts.enter_laptop())
        begun = time.time()
        yield Scene(hosts, home, _start(hosts, home), begun)


def _start(hosts: Cluster, home: Path) -> Task[Any]:
    from flowlite import Flow, TaskConfig

    names = ", ".join(f'"{host.name}"' for host in hosts)
    (home / "config.toml").write_text(
        f'provider = "ssh"\n[ssh]\nconfig_file = "{hosts.ssh_config}"\n'
        f'[ssh.pools.lab]\nhosts = [{names}]\npython = "{hosts[0].python}"\n'
    )
    config = TaskConfig(
        command=[sys.executable, "-c", PROGRAM],
        num_instances=NODES,
        processes_per_node=PER_NODE,
        secrets=["API_TOKEN"],
    )
    task = Flow().run(config)
    said = lambda: str(task.logs()).count("the token is")  # noqa: E731
    eventually(lambda: said() == NODES * PER_NODE, what="all ranks run")
    return task


def test_another_user_of_a_host_sees_no_secret(scene: Scene) -> None:
    # The search itself finds secrets where there are some.
    assert any("secrets.json" in path for path in scene.seen(scene.hosts[0], "root"))

    for host in scene.hosts:
        assert scene.seen(host, "flow") == []


def test_nothing_secret_is_on_a_command_line_even_for_the_owner(scene: Scene) -> None:
    for host in scene.hosts:
        assert [path for path in scene.seen(host, "root") if path.endswith("cmdline")] == []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            continue
        assert not any(word in line for word in scene.words), line


def test_secrets_lie_in_files_that_only_their_owner_can_read(scene: Scene) -> None:
    on_hosts = [
        host.root / path.lstrip("/")
        for host in scene.hosts
        for path in scene.seen(host, "root")
        if not path.startswith("/proc/")
    ]
    words = [word.encode() for word in scene.words]
    here = [
        path
        for path in scene.home.rglob("*")
        if path.is_file() and any(word in path.read_bytes() for word in words)
    ]
    assert on_hosts
    assert here
    for path in [*on_hosts, *here]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_secret_is_masked_in_every_line_that_is_shown(scene: Scene) -> None:
    lines = [line.text for line in scene.task.logs()]

    assert lines == ["the token is ***"] * (NODES * PER_NODE)


def test_the_store_and_the_configuration_have_no_secret(scene: Scene) -> None:
    kept = scene.home / "tasks" / scene.task.id
    paths = [*scene.home.glob("state.db*"), kept / "config.json", kept / "plan.json"]
    assert len(paths) >= 3
    for path in paths:
        assert not any(word.encode() in path.read_bytes() for word in scene.words), path


def test_the_gang_listens_on_private_addresses_only(scene: Scene) -> None:
    for host in scene.hosts:
        places = [line.split()[3] for line in host.exec(["ss", "-Hltn"]).stdout.splitlines()]
        # Port 22 is that of sshd.
        ours = [place for place in places if not place.endswith(":22")]
        assert all(place.startswith((f"{host.address}:", "127.")) for place in ours), ours
        if host is scene.leader:
            assert any(place.startswith(f"{host.address}:") for place in ours), ours


def test_no_key_that_opens_a_machine_lies_on_a_node(scene: Scene) -> None:
    """The rendezvous' own key, on the leader only, belongs to a certificate that lets nobody in anywhere."""
    for host in scene.hosts:
        found = host.exec(["grep", "-rIl", "PRIVATE KEY", "/root/.flowlite-node", "/tmp", "/run"])
        shown = ("/run/sshd/", *_SHOWN)
        paths = [path for path in found.stdout.splitlines() if not path.startswith(shown)]
        keys = [Path(path).name for path in paths]
        assert keys == (["rendezvous.key"] if host is scene.leader else [])
        for pid in host.pids():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            assert b"SSH_AUTH_SOCK" not in environment


def test_a_node_cannot_log_in_to_another_one(scene: Scene) -> None:
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "StrictHostKeyChecking=no"]
    done = scene.hosts[0].exec(["ssh", *options, f"root@{scene.hosts[1].address}", "true"])

    assert "Permission denied" in done.stderr
    assert done.returncode != 0

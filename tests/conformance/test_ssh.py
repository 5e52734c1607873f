"""The SSH provider on test hosts, held to the contract."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Instance, Provider
from flowlite.testing.conformance import ProviderSuite, ProviderUnderTest
from flowlite.testing.hosts import Cluster, Host
from tests.helpers import kill_processes_of_home


class Ssh(ProviderUnderTest):
    """A pool of three hosts, so that one can be spared; the client is on the laptop."""

    name = "ssh"
    interfaces = ("file",)
    # A host that is gone may only be out of reach: it is replaced when it must have stopped its workers by itself.
    patience = 180.0

    def __init__(self, home: Path, hosts: list[Host]) -> None:
        self._hosts = hosts
        names = json.dumps([host.name for host in hosts])
        (home / "config.toml").write_text(
            f'[ssh.pools.lab]\nhosts = {names}\npython = "{sys.executable}"\n'
            'shared_dir = "/mnt/shared"\n'
        )

    def make(self) -> Provider:
        return adapter("ssh")

    def kill(self, instance: Instance) -> None:
        self._host(instance).kill()

    def left(self, task_id: str) -> list[str]:
        """Processes that name the task, and its directories."""
        found = []
        for host in self._hosts:
            if not host.alive:
                continue
            found += [f"{host.name}: {said}" for said in _processes(host, task_id)]
            listed = host.exec(["sh", "-c", f"find ~/.flowlite-node -name '*{task_id}*'"])
            found += [f"{host.name}: {line}" for line in listed.stdout.splitlines()]
        return found

    @contextmanager
    def scarcity(self) -> Iterator[None]:
        """Two hosts are out of order, one is there."""
        for host in self._hosts[:2]:
            host.stop_sshd(sessions=True)
        try:
            yield
        finally:
            for host in self._hosts[:2]:
                host.start_sshd()

    def _host(self, instance: Instance) -> Host:
        return next(host for host in self._hosts if host.name == instance.data["host"])


def _processes(host: Host, task_id: str) -> list[str]:
    found = []
    for pid in host.pids():
        with suppress(OSError):
            said = Path(f"/proc/{pid}/cmdline").read_bytes() + b" "
            said += Path(f"/proc/{pid}/environ").read_bytes()
            if task_id.encode() in said:
                found.append(said.replace(b"\0", b" ").decode(errors="replace")[:200])
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestSsh(ProviderSuite):
    @pytest.fixture
    def subject(
        self, home: Path, hosts: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[ProviderUnderTest]:
        monkeypatch.setenv("FLOW_SSH_CONFIG", str(hosts.ssh_config))
        with hosts.enter_laptop():
            yield Ssh(home, list(hosts[:3]))
            kill_processes_of_home(home)

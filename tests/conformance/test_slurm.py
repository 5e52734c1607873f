"""A real Slurm, held to the contract: from a login node, and from a laptop through SSH."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flowlite.api.adapters import adapter
from flowlite.provider import Instance, LaunchIntent, LaunchPending, Provider
from flowlite.testing.conformance import (
    ProviderSuite,
    ProviderUnderTest,
)
from flowlite.testing.hosts import Host
from flowlite.testing.launching import Intend
from flowlite.testing.slurm import SlurmCluster
from tests.helpers import kill_processes_of_home
from tests.slurm.traces import left_of


class Slurm(ProviderUnderTest):
    """Two nodes of four. `login` as in the configuration; "" for a client that is on a login node."""

    name = "slurm"
    together = True
    interfaces = ("file",)
    # Slurm takes some 30 s to find out that a node is gone.
    patience = 180.0

    def __init__(self, slurm: SlurmCluster, home: Path, login: str) -> None:
        self.slurm = slurm
        told = f'login = "{login}"\n' if login else ""
        (home / "config.toml").write_text(
            f'[slurm]\n{told}python = "{sys.executable}"\nshared_dir = "{slurm.shared}/flowlite"\n'
        )

    def make(self) -> Provider:
        return adapter("slurm")

    def kill(self, instance: Instance) -> None:
        # A job that waits is listed, too, and has no node.
        if host := self._host(instance):
            self.slurm.kill_node(host)

    def end(self, instances: Sequence[Instance]) -> None:
        """Waits for the jobs, too: all nodes of one end together."""
        super().end(instances)
        jobs = {int(instance.data["job"]) for instance in instances}
        self.eventually(
            lambda: not jobs & set(self.slurm.jobs()), f"jobs {jobs} have ended", every=0.2
        )

    def left(self, task_id: str) -> list[str]:
        return left_of(self.slurm, task_id)

    @contextmanager
    def scarcity(self) -> Iterator[None]:
        """One node takes jobs, the others are drained."""
        for host in self.slurm.nodes[1:]:
            self.slurm.drain(host)
        try:
            yield
        finally:
            for host in self.slurm.nodes[1:]:
                self.slurm.undrain(host)

    def launch(self, intent: LaunchIntent) -> list[Instance]:
        """As the supervisor does: as long as the job waits, the provider is asked again."""

        def launched() -> list[Instance] | None:
            with suppress(LaunchPending):
                return self.make().launch(intent)
            return None

        return self.eventually(launched, "the job runs", every=0.1)

    def _host(self, instance: Instance) -> Host | None:
        name = instance.data.get("host")
        return next((host for host in self.slurm.nodes if host.name == name), None)


class SlurmSuite(ProviderSuite):
    """What is otherwise with Slurm: a job is one thing. It waits for its nodes, and they end together."""

    def test_it_is_all_or_none(self, subject: ProviderUnderTest, intend: Intend) -> None:
        assert isinstance(subject, Slurm)
        intent = intend()
        with subject.scarcity():
            self._no_node(subject, intent)
            assert [i for i in subject.listed(intent.task_id) if i.state != "starting"] == []
            assert len(subject.slurm.jobs("PENDING")) == 1
        subject.end(subject.make().list_instances(intent.task_id))
        assert subject.left(intent.task_id) == []

    def test_what_was_refused_for_lack_of_nodes_can_be_had_later(
        self, subject: ProviderUnderTest, intend: Intend
    ) -> None:
        assert isinstance(subject, Slurm)
        intent = intend()
        with subject.scarcity():
            self._no_node(subject, intent)
        assert len(subject.launch(intent)) == subject.nodes

    def _no_node(self, subject: Slurm, intent: LaunchIntent) -> None:
        for _ in range(3):
            with pytest.raises(LaunchPending) as waiting:
                subject.make().launch(intent)
            assert waiting.value.retry_after > 0
        subject.eventually(lambda: subject.slurm.jobs("PENDING"), "the job waits")
        with pytest.raises(LaunchPending) as queued:
            subject.make().launch(intent)
        assert queued.value.queued
        assert subject.slurm.jobs("RUNNING") == []


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestSlurmFromTheLoginNode(SlurmSuite):
    """The laptop is a login node: Slurm's commands are here."""

    @pytest.fixture
    def subject(
        self, home: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[ProviderUnderTest]:
        for name, value in slurm.login_environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FLOW_HOME", str(home))
        with slurm.enter_laptop():
            yield Slurm(slurm, home, "")
            kill_processes_of_home(home)


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestSlurmFromALaptop(SlurmSuite):
    """The laptop reaches the login node, and no other."""

    @pytest.fixture
    def subject(
        self, home: Path, slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[ProviderUnderTest]:
        monkeypatch.setenv("FLOW_SSH_CONFIG", str(slurm.hosts.ssh_config))
        slurm.hide_nodes()
        with slurm.enter_laptop():
            yield Slurm(slurm, home, slurm.login)
            kill_processes_of_home(home)

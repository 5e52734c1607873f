"""A login node that cannot be used: what may pass is waited for, and what somebody has to change is an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite.connect.ssh import link
from flowlite.errors import HostKeyError, NodeUnreachable
from provider_adapters.slurm.login import SlurmLogin, SlurmUnreachable
from provider_adapters.slurm.queries.queue import Queue
from tests.components import need
from tests.connect.sshd import Sshd, scratch

Login = Callable[..., tuple[Sshd, SlurmLogin]]


@pytest.fixture
def login(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    need("sshd")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made: list[Sshd] = []

    def make(*, known: bool = True, **options: str) -> tuple[Sshd, SlurmLogin]:
        server = Sshd(scratch(), options=options).start()
        made.append(server)
        config = tmp_path / "ssh_config"
        config.write_text(server.config_for("cluster", known=known))
        monkeypatch.setenv("FLOW_SSH_CONFIG", str(config))
        return server, SlurmLogin("cluster", tmp_path)

    yield make
    link.close_idle()
    for server in made:
        server.stop()
        shutil.rmtree(server.directory)


def test_an_unknown_key_is_an_error_at_once(login: Login, tmp_path: Path) -> None:
    _, found = login(known=False)
    with pytest.raises(HostKeyError, match="flow hosts trust cluster"):
        found.run(["true"])
    # Not hidden behind a queue that "does not answer just now".
    with pytest.raises(HostKeyError):
        Queue(found, tmp_path).jobs()


def test_one_that_opens_no_session_is_an_error(login: Login) -> None:
    _, found = login(MaxSessions="0")
    with pytest.raises(NodeUnreachable, match="MaxSessions"):
        found.run(["true"])


def test_one_that_is_away_is_waited_for(login: Login, tmp_path: Path) -> None:
    server, found = login()
    assert found.run(["true"]).code == 0
    server.stop()
    link.close_idle()
    with pytest.raises(SlurmUnreachable):
        found.run(["true"])
    with pytest.raises(SlurmUnreachable):
        Queue(found, tmp_path).jobs()

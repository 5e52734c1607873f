"""An sshd for the tests of this room, one per test session, and connections to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.connect.ssh import link
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from tests.components import need
from tests.connect.sshd import Sshd, scratch


def _need_sshd() -> None:
    need("sshd")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FLOW_HOME of its own for each test, and no agent."""
    path = tmp_path / "flow"
    monkeypatch.setenv("FLOW_HOME", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("FLOW_SSH_CONFIG", raising=False)
    return path


@pytest.fixture(scope="session")
def server() -> Iterator[Sshd]:
    """A server that all tests share; they leave it as they found it."""
    _need_sshd()
    directory = scratch()
    server = Sshd(directory).start()
    yield server
    link.close_idle()
    server.stop()
    shutil.rmtree(directory)


@pytest.fixture
def servers() -> Iterator[Callable[..., Sshd]]:
    """Makes servers for one test alone: `servers(MaxSessions="2")`."""
    _need_sshd()
    made: list[Sshd] = []

    def make(*, start: bool = True, keys: tuple[str, ...] = ("ed25519",), **options: str) -> Sshd:
        made.append(Sshd(scratch(), options=options, keys=keys))
        return made[-1].start() if start else made[-1]

    yield make
    link.close_idle()
    for server in made:
        server.stop()
        shutil.rmtree(server.directory)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes an OpenSSH configuration."""

    def write(*blocks: str) -> Path:
        path = tmp_path / "ssh_config"
        path.write_text("".join(blocks))
        return path

    return write


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., SshConnection]]:
    """Connections to servers: `connect(server)`; closed after the test."""
    made: list[SshConnection] = []

    def make(server: Sshd, alias: str = "box", **more: Any) -> SshConnection:
        path = tmp_path / f"config.{len(made)}"
        path.write_text(server.config_for(alias, **more))
        made.append(SshConnection(resolve_target(alias, path)))
        return made[-1]

    yield make
    for connection in made:
        connection.close()
    link.close_idle()


@pytest.fixture
def connection(connect: Callable[..., SshConnection], server: Sshd) -> SshConnection:
    """One connection to the shared server."""
    return connect(server)

"""`flow hosts` while a host accepts the connection and says nothing: who waits is told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from flowlite.cli.commands import hosts
from flowlite.connect.ssh import transport
from tests.cli.conftest import Flow


@pytest.mark.parametrize("words", [[], ["list", "--json"], ["check"]])
def test_who_waits_for_a_silent_host_is_told(
    flow: Flow, flow_home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(hosts, "SAID_AFTER", 0.2)
    monkeypatch.setattr(transport, "HANDSHAKE_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (flow_home / "config.toml").write_text(
            f'[[ssh.pools.default.hosts]]\nhost = "127.0.0.1"\nport = {port}\n'
        )
        said = flow("hosts", *words)
    assert "not all hosts have answered yet" in said.err
    assert "answered yet" not in said.out

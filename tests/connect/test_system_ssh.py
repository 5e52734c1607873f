"""Shells and commands on our own terminal: the system's ssh, going where we go and believing the same keys."""

from __future__ import annotations

import os
import pty
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.connect.ssh import host_key_scan, host_keys
from flowlite.connect.ssh import system as system_ssh
from flowlite.connect.ssh.connection import SshConnection, SshTarget, resolve_target
from flowlite.errors import HostKeyError, NodeUnreachable
from tests.connect.sshd import Sshd
from tests.helpers import eventually

Servers = Callable[..., Sshd]
Connect = Callable[..., SshConnection]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("exit 0", 0),
        ("exit 9", 9),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("exit 255", 255),
    ],
)
def test_the_exit_status_is_kept(connection: SshConnection, text: str, status: int) -> None:
    assert connection.stream(["sh", "-c", text], terminal=False) == status


def test_a_command_that_is_not_there(connection: SshConnection) -> None:
    assert connection.stream(["no-such-command"], terminal=False) == 127


@pytest.mark.needs("ssh")
@pytest.mark.usefixtures("flow_home")
def test_the_zone_of_an_address_stays_as_it_is(tmp_path: Path) -> None:
    zoned = "fe80::1%eth0"
    target = SshTarget("lab", "ann", zoned, host_key_name=zoned, bind_address="fe80::2%eth0")
    path = system_ssh.write(tmp_path, *system_ssh.entries("lab", target, tmp_path / "known_hosts"))
    said = subprocess.run(
        ["ssh", "-G", "-F", str(path), "lab"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = {f"hostname {zoned}", f"hostkeyalias {zoned}", "bindaddress fe80::2%eth0"}
    assert wanted <= set(said)


def test_an_unknown_host(servers: Servers, connect: Connect) -> None:
    with pytest.raises(HostKeyError, match="flow hosts trust box"):
        connect(servers(), known=False).stream(["true"], terminal=False)


def test_a_key_that_was_trusted_through_us(servers: Servers, connect: Connect) -> None:
    connection = connect(servers(), known=False)
    host_keys.trust(connection.target, host_key_scan.fetch(connection.target))
    assert connection.stream(["sh", "-c", "exit 3"], terminal=False) == 3


def test_a_host_that_is_gone(servers: Servers, connect: Connect) -> None:
    server = servers()
    connection = connect(server)
    server.stop()
    with pytest.raises(NodeUnreachable, match="refused"):
        connection.stream(["true"], terminal=False)


def test_no_ssh_here(connection: SshConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_ssh.shutil, "which", lambda name: None)
    with pytest.raises(NodeUnreachable, match="install openssh-client"):
        connection.stream(["true"], terminal=False)


@pytest.mark.parametrize("place", ["plain", "it's a % place"])
def test_what_ssh_is_told(
    servers: Servers, config: Callable[..., Path], tmp_path: Path, place: str
) -> None:
    gate, inner = servers(), servers()
    path = config(
        gate.config_for("gate"),
        inner.config_for("inner", extra="  ProxyJump gate\n  ForwardAgent yes\n"),
    )
    target = resolve_target("inner", path)
    known = tmp_path / place / "known_hosts"
    text, keys = system_ssh.entries("flow-train-0", target, known)
    file = system_ssh.write(known.parent, text, keys)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    for alias in ("flow-train-0", "flow-train-0-jump-0"):
        done = subprocess.run(
            ["ssh", "-G", "-F", str(file), alias], capture_output=True, text=True, check=True
        )
        told = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        assert told["userknownhostsfile"].strip('"') == str(known)
        assert told["globalknownhostsfile"] == "none"
        assert told["stricthostkeychecking"] in ("yes", "true")
        assert told["forwardagent"] == "no"
        assert told["forwardx11"] == "no"
        assert told["passwordauthentication"] == "no"
        assert told["batchmode"] == "yes"
        assert int(told["connecttimeout"]) > 0
    ran = subprocess.run(
        ["ssh", "-F", str(file), "flow-train-0", "echo inside"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "inside\n"
    # Only what is known of these two.
    assert sorted(keys.splitlines()) == sorted(
        f"{host.known_line.strip()}" for host in (gate, inner)
    )


def test_a_silent_host_behind_another_is_given_up(
    servers: Servers,
    config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, inner = servers(), servers(start=False)
    monkeypatch.setattr(system_ssh, "CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        path = config(
            gate.config_for("gate"),
            inner.config_for("inner", extra="  ProxyJump gate\n").replace(
                f"Port {inner.port}", f"Port {port}"
            ),
        )
        target = resolve_target("inner", path)
        text, keys = system_ssh.entries("flow-train-0", target, tmp_path / "known_hosts")
        file = system_ssh.write(tmp_path, text, keys)

        # A `TimeoutExpired` of this is the failure.
        ran = subprocess.run(
            ["ssh", "-F", str(file), "flow-train-0", "true"], check=False, timeout=90
        )

    assert target.port == port
    assert ran.returncode == 255


# An sshd that is not root's opens no terminals.
@pytest.mark.needs("root")
def test_a_terminal(connection: SshConnection, server: Sshd, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from flowlite.connect.ssh.connection import SshConnection, resolve_target\n"
        "c = SshConnection(resolve_target('box', sys.argv[1]))\n"
        "text = 'tty -s && printf typed: && read x && echo \"<$x>\"; exit 6'\n"
        "sys.exit(c.stream(['sh', '-c', text], terminal=True))\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.execv(
            sys.executable, [sys.executable, "-c", program, str(connection.target.config_file)]
        )
    seen = b""
    try:
        while b"typed:" not in seen:
            seen += os.read(terminal, 1024)
        os.write(terminal, b"hello\n")
        while True:
            seen += os.read(terminal, 1024)
    except OSError:
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6, seen
    assert b"<hello>" in seen
    os.close(terminal)


def test_a_key_that_only_the_agent_has(
    servers: Servers, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers()
    agent = server.directory / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(agent)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        eventually(agent.exists)
        subprocess.run(["ssh-add", "-q", str(server.client_key)], check=True)
        server.client_key.unlink()
        connection = connect(server)
        assert connection.run(["true"]).code == 0
        # It logs us in, and is not forwarded.
        script = '[ -z "$SSH_AUTH_SOCK" ] && exit 4'
        assert connection.stream(["sh", "-c", script], terminal=False) == 4
    finally:
        process.terminate()
        process.wait()

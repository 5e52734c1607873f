"""Host keys: always compared, on the way too; a man in the middle gets nothing, not even a user name."""

from __future__ import annotations

import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowlite.connect.ssh import host_key_scan, host_keys, link, system
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.connect.ssh.targets import SshTarget, key_name
from flowlite.errors import ConfigError, HostKeyError, NodeUnreachable
from tests.connect.sshd import Sshd, make_key
from tests.helpers import eventually

Servers = Callable[..., Sshd]
Connect = Callable[..., SshConnection]


def fingerprint(public: Path) -> str:
    """What ssh-keygen calls a key."""
    done = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(public)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1]


def nobody_logged_in(server: Sshd) -> bool:
    """Whether the server was never asked to let anybody in; it notes each request at this log level."""
    text = server.log.read_text()
    return "userauth-request" not in text and "Accepted" not in text


def test_an_unknown_host_is_refused(servers: Servers, connect: Connect) -> None:
    server = servers(LogLevel="DEBUG2")
    with pytest.raises(HostKeyError) as caught:
        connect(server, "lab1", known=False).run(["true"])
    error = caught.value
    assert error.fingerprint == fingerprint(server.directory / "host_ed25519.pub")
    assert error.fingerprint in str(error)
    assert "flow hosts trust lab1" in str(error)
    assert (error.host, error.changed) == ("lab1", False)
    assert isinstance(error, NodeUnreachable)
    eventually(lambda: "kex" in server.log.read_text())
    assert nobody_logged_in(server)


def swap(server: Sshd) -> None:
    """Puts another machine in its place: same address and port, another key, the same accounts."""
    server.stop()
    server.host_keys = [make_key(server.directory / "impostor")]
    server.log.write_text("")
    server.start()


def test_a_man_in_the_middle_gets_nothing(
    servers: Servers, connect: Connect, tmp_path: Path
) -> None:
    server = servers(LogLevel="DEBUG2")
    connection = connect(server)
    connection.put(b"before", str(tmp_path / "file"))
    assert not nobody_logged_in(server)
    transport = connection._link.transport()
    swap(server)
    eventually(lambda: not transport.is_active())
    for attempt in (
        lambda: connection.run(["true"]),
        lambda: connection.put(b"a secret", str(tmp_path / "file")),
        lambda: connection.start(["true"], log="/dev/null", environment={"TOKEN": "a secret"}),
        lambda: list(connection.read("/etc/passwd")),
        lambda: connection.stream(["true"], terminal=False),
    ):
        with pytest.raises(HostKeyError) as caught:
            attempt()
    assert caught.value.changed
    assert fingerprint(server.directory / "impostor.pub") in str(caught.value)
    assert fingerprint(server.directory / "host_ed25519.pub") in str(caught.value)
    assert "flow hosts trust box" in str(caught.value)
    assert (tmp_path / "file").read_bytes() == b"before"
    assert nobody_logged_in(server)


def test_a_man_in_the_middle_of_the_way(servers: Servers, config: Callable[..., Path]) -> None:
    gate, inner = servers(LogLevel="DEBUG2"), servers()
    path = config(gate.config_for("gate"), inner.config_for("inner", extra="  ProxyJump gate\n"))
    with SshConnection(resolve_target("inner", path)) as connection:
        assert connection.run(["echo", "inside"]).stdout == b"inside\n"
    link.close_idle()
    swap(gate)
    with SshConnection(resolve_target("inner", path)) as connection:
        for attempt in (
            lambda: connection.run(["true"]),
            lambda: connection.stream(["true"], terminal=False),
        ):
            with pytest.raises(HostKeyError, match="host gate") as caught:
                attempt()
            # It is the host on the way whose key is another, and the one to be trusted.
            assert caught.value.host == "gate"
            assert caught.value.cure == "flow hosts trust gate"
            assert "`flow hosts trust gate`" in str(caught.value)
        with pytest.raises(HostKeyError, match="on the way to inner, jump host gate"):
            connection.run(["true"])
    assert nobody_logged_in(gate)


def test_trust(servers: Servers, connect: Connect, home: Path) -> None:
    server = servers()
    connection = connect(server, "lab1", known=False)
    target = connection.target
    key = host_key_scan.fetch(target)
    assert key.fingerprint == fingerprint(server.directory / "host_ed25519.pub")
    assert host_keys.known(target) == []
    path = host_keys.trust(target, key)
    assert path == home / "known_hosts"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert connection.run(["true"]).code == 0
    # A new key takes the place of the old one, and of nothing else.
    other = SshTarget("other", "u", "other", host_key_name="other")
    host_keys.trust(other, key)
    swap(server)
    changed = connect(server, "lab1", known=False)
    with pytest.raises(HostKeyError):
        changed.open()
    host_keys.trust(target, host_key_scan.fetch(changed.target))
    changed.open()
    assert len(path.read_text().splitlines()) == 2
    assert [entry.key for entry in host_keys.known(other)] == [key]


def test_keys_that_are_trusted_at_the_same_time_are_all_kept(home: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    together = threading.Barrier(len(names))

    def trust(name: str) -> None:
        together.wait()
        key = host_keys.HostKey("ssh-ed25519", name.encode())
        host_keys.trust(SshTarget(name, "u", name, host_key_name=name), key)

    with ThreadPoolExecutor(len(names)) as threads:
        for _ in threads.map(trust, names):
            pass
    lines = host_keys.own_file().read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(names)


def test_a_revoked_key_is_refused(servers: Servers, connect: Connect) -> None:
    server = servers()
    connection = connect(server)
    file = server.directory / "known_hosts"
    file.write_text(f"{server.known_line}@revoked * {server.known_line.split(maxsplit=1)[1]}")
    with pytest.raises(HostKeyError, match=r"revoked in .*known_hosts") as caught:
        connection.run(["true"])
    assert caught.value.revoked
    assert "trust" not in f"{caught.value} {caught.value.cure}"
    with pytest.raises(HostKeyError, match="revoked"):
        host_keys.trust(connection.target, host_key_scan.fetch(connection.target))
    assert not host_keys.own_file().exists()


@pytest.mark.parametrize("form", ["text", "krl"])
def test_a_key_in_a_file_of_revoked_keys_is_refused(
    servers: Servers, connect: Connect, tmp_path: Path, form: str
) -> None:
    server, other = servers(), servers()
    revoked = tmp_path / "revoked keys"

    def revoke(*keys: Path) -> None:
        if form == "krl":
            make = ["ssh-keygen", "-q", "-k", "-f", str(revoked), *map(str, keys)]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        else:
            revoked.write_text("# lost\n" + "".join(key.read_text() for key in keys))

    keys = [each.directory / "host_ed25519.pub" for each in (server, other)]
    revoke(keys[1])
    option = f'  RevokedHostKeys "{revoked}"\n'
    fine = connect(server, extra=option)
    assert fine.run(["true"]).code == 0
    fine.close()
    link.close_idle()
    assert system.stream(fine.target, ["true"], terminal=False) == 0
    revoke(*keys)
    refused = connect(server, extra=option)
    for attempt in (
        lambda: refused.run(["true"]),
        lambda: system.stream(refused.target, ["true"], terminal=False),
    ):
        with pytest.raises(HostKeyError, match=r"revoked in .*revoked keys") as caught:
            attempt()
        assert caught.value.revoked
    with pytest.raises(HostKeyError, match="revoked"):
        host_keys.trust(refused.target, host_key_scan.fetch(refused.target))
    # As OpenSSH does: without the list, no host counts as safe.
    revoked.unlink()
    with pytest.raises(ConfigError, match=r"RevokedHostKeys .*revoked keys: cannot be read"):
        connect(server, extra=option).run(["true"])


def test_the_key_that_is_known_is_asked_for(servers: Servers, connect: Connect) -> None:
    # It also has an ed25519 key, which it would show if it were left to choose.
    server = servers(keys=("ed25519", "ecdsa", "rsa"))
    for kind in ("ecdsa", "rsa"):
        connection = connect(server)
        name = server.known_line.split()[0]
        public = (server.directory / f"host_{kind}.pub").read_text()
        (server.directory / "known_hosts").write_text(f"{name} {public}")
        assert connection.run(["true"]).code == 0
        connection.close()
        link.close_idle()


def test_hashed_names(servers: Servers, connect: Connect) -> None:
    server = servers()
    connection = connect(server)
    file = server.directory / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert file.read_text().startswith("|1|")
    assert connection.run(["true"]).code == 0


# Files of known hosts, beside what ssh-keygen finds in them

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmGrJcqO0WmWm0nJYQ7eQ3u8d6b6tPzHq6k3Vb0Vt3F"
NAMES = ("lab", "lab2", "10.0.0.7", "a.example.org")
patterns = st.lists(
    st.sampled_from(
        ["lab", "lab?", "*.example.org", "!lab2", "*", "10.0.0.7", "[lab]:77", "[*]:77", "LAB"]
    ),
    min_size=1,
    max_size=3,
).map(",".join)
lines = st.one_of(
    patterns.map(lambda names: f"{names} {KEY}"),
    patterns.map(lambda names: f"@cert-authority {names} {KEY}"),
    st.sampled_from(
        ["", "# comment", f"#lab {KEY}", "lab ssh-ed25519", f"lab {KEY} with a comment"]
    ),
)


@pytest.mark.needs("ssh")
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(lines, max_size=4), st.sampled_from(NAMES), st.sampled_from([22, 77]), st.booleans()
)
def test_as_ssh_keygen_finds_them(
    tmp_path: Path, content: list[str], name: str, port: int, hashed: bool
) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in content))
    if hashed and content:
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", str(file)], check=False, capture_output=True
        )
    target = SshTarget(
        name, "u", name, port, host_key_name=key_name(name, port), known_hosts=(str(file),)
    )
    done = subprocess.run(
        ["ssh-keygen", "-F", target.host_key_name, "-f", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    theirs = [
        line
        for line in done.stdout.splitlines()
        if line.strip() and not line.startswith(("#", "@cert-authority"))
    ]
    assert len(host_keys.known(target)) == len(theirs)

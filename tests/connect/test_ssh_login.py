"""Logging in: kinds of keys, certificates, agents, and what is said when nothing is accepted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite.connect.ssh import link
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.connect.ssh.login import public_blob
from flowlite.errors import NodeUnreachable
from tests.components import need
from tests.connect.sshd import Sshd, make_key, scratch

Servers = Callable[..., Sshd]
Config = Callable[..., Path]


def log_in(server: Sshd, config: Config, *lines: str) -> None:
    """Runs a command with these lines of configuration in place of the usual key."""
    block = server.config_for()
    kept = [line for line in block.splitlines() if "Identit" not in line]
    path = config("\n".join([*kept, *(f"  {line}" for line in lines)]) + "\n")
    try:
        with SshConnection(resolve_target("box", path)) as connection:
            assert connection.run(["echo", "in"]).stdout == b"in\n"
            assert connection.run(["printenv", "SSH_AUTH_SOCK"]).code == 1
    finally:
        link.close_idle()


def allow(server: Sshd, *keys: Path) -> None:
    """Lets these keys in, and no other."""
    server.authorized.write_text("".join(Path(f"{key}.pub").read_text() for key in keys))


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An agent; calling it adds a key."""
    need("ssh")
    directory = scratch()
    socket = directory / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL, start_new_session=True
    )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    from tests.helpers import eventually

    eventually(socket.exists)

    def add(key: Path) -> None:
        subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)

    yield add
    process.terminate()
    process.wait()
    shutil.rmtree(directory)


def encrypt(key: Path) -> Path:
    """Puts a passphrase on a key."""
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "long enough", "-f", str(key)], check=True
    )
    return key


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_kinds_of_keys(server: Sshd, config: Config, tmp_path: Path, kind: str) -> None:
    key = make_key(tmp_path / "key", kind)
    before = server.authorized.read_text()
    allow(server, key)
    try:
        log_in(server, config, f"IdentityFile {key}")
    finally:
        server.authorized.write_text(before)


def test_an_encrypted_key_needs_an_agent(
    servers: Servers, config: Config, agent: Callable[[Path], None]
) -> None:
    server = servers()
    key = server.client_key
    agent(key)
    encrypt(key)
    log_in(server, config, f"IdentityFile {key}")
    # Without its other half beside it, too: the file says which key it is.
    (public := Path(f"{key}.pub")).rename(public.with_suffix(".away"))
    log_in(server, config, f"IdentityFile {key}", "IdentitiesOnly yes")
    with pytest.raises(NodeUnreachable, match=f"is encrypted.*run `ssh-add {key}`"):
        log_in(server, config, f"IdentityFile {key}", "IdentityAgent none")


def test_a_key_that_only_the_agent_has(
    servers: Servers, config: Config, agent: Callable[[Path], None], tmp_path: Path
) -> None:
    server = servers()
    other = make_key(tmp_path / "other")
    agent(other)
    agent(server.client_key)
    server.client_key.unlink()
    log_in(server, config)
    # Named by its public half, it is the only one that is tried.
    server.log.write_text("")
    log_in(server, config, f"IdentityFile {server.client_key}", "IdentitiesOnly yes")
    assert "Failed publickey" not in server.log.read_text()
    with pytest.raises(NodeUnreachable, match="no key, since none was found"):
        log_in(server, config, f"IdentityFile {tmp_path}/none", "IdentitiesOnly yes")
    # The agent's socket may be named by the configuration.
    path = os.environ.pop("SSH_AUTH_SOCK")
    try:
        log_in(server, config, f"IdentityAgent {path}")
    finally:
        os.environ["SSH_AUTH_SOCK"] = path


def test_a_key_of_the_agent_that_is_named_by_its_public_half(
    servers: Servers, config: Config, agent: Callable[[Path], None], tmp_path: Path
) -> None:
    server = servers()
    agent(make_key(tmp_path / "other"))
    agent(server.client_key)
    server.client_key.unlink()
    # As 1Password and others advise, whose keys never are in a file.
    public = Path(f"{server.client_key}.pub").rename(tmp_path / "work.pub")
    server.log.write_text("")
    log_in(server, config, f"IdentityFile {public}", "IdentitiesOnly yes")
    assert "Failed publickey" not in server.log.read_text()
    absent = Path(f"{make_key(tmp_path / 'absent')}.pub")
    with pytest.raises(NodeUnreachable, match=f"{absent} is a public key, and no agent"):
        log_in(server, config, f"IdentityFile {absent}", "IdentitiesOnly yes")


def test_a_certificate_for_a_key_of_the_agent(
    servers: Servers, config: Config, agent: Callable[[Path], None], tmp_path: Path
) -> None:
    authority, key = make_key(tmp_path / "authority"), make_key(tmp_path / "key")
    server = servers(start=False)
    server.options["TrustedUserCAKeys"] = f"{authority}.pub"
    server.start()
    allow(server)
    agent(key)
    # It is newer than the key in the agent, as where a certificate is made anew each day.
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", server.user, f"{key}.pub"],
        check=True,
    )
    key.unlink()
    log_in(server, config, f"IdentityFile {key}", "IdentitiesOnly yes")
    elsewhere = Path(f"{key}-cert.pub").rename(tmp_path / "elsewhere.pub")
    log_in(
        server,
        config,
        f"IdentityFile {key}.pub",
        "IdentitiesOnly yes",
        f"CertificateFile {elsewhere}",
    )


def test_an_agent_that_is_gone(
    server: Sshd, config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    log_in(server, config, f"IdentityFile {server.client_key}")
    with pytest.raises(NodeUnreachable, match="does not answer"):
        log_in(server, config, f"IdentityFile {tmp_path}/none")


def test_an_agent_of_a_later_login_takes_the_place_of_one_that_is_gone(
    server: Sshd,
    config: Config,
    agent: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flow_home: Path,
) -> None:
    """As of a supervisor that was begun in a login with a forwarded agent, which is over."""
    agent(server.client_key)
    of_the_later = os.environ["SSH_AUTH_SOCK"]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    flow = [sys.executable, "-m", "flowlite.cli", "status"]
    with pytest.raises(NodeUnreachable, match="any `flow` command in a shell that has an agent"):
        log_in(server, config)
    # One that is gone is not noted.
    for socket in (of_the_later, str(tmp_path / "gone too")):
        subprocess.run(
            flow, env={**os.environ, "SSH_AUTH_SOCK": socket}, check=True, capture_output=True
        )
    log_in(server, config)
    # An agent that the configuration names is no other's business, and neither is a program without one.
    with pytest.raises(NodeUnreachable):
        log_in(server, config, f"IdentityAgent {tmp_path}/gone")
    monkeypatch.delenv("SSH_AUTH_SOCK")
    with pytest.raises(NodeUnreachable):
        log_in(server, config)


def test_a_certificate(servers: Servers, config: Config, tmp_path: Path) -> None:
    authority = make_key(tmp_path / "authority")
    server = servers(start=False)
    server.options["TrustedUserCAKeys"] = f"{authority}.pub"
    server.start()
    allow(server)
    key = make_key(tmp_path / "key")
    with pytest.raises(NodeUnreachable):
        log_in(server, config, f"IdentityFile {key}")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", server.user, f"{key}.pub"],
        check=True,
    )
    log_in(server, config, f"IdentityFile {key}")
    elsewhere = tmp_path / "elsewhere.pub"
    Path(f"{key}-cert.pub").rename(elsewhere)
    log_in(server, config, f"IdentityFile {key}", f"CertificateFile {elsewhere}")


def test_what_is_said_of_a_refusal(server: Sshd, config: Config, tmp_path: Path) -> None:
    key, garbage = make_key(tmp_path / "key"), tmp_path / "garbage"
    garbage.write_text("nothing like a key\n")
    with pytest.raises(NodeUnreachable) as caught:
        log_in(
            server,
            config,
            f"IdentityFile {key}",
            f"IdentityFile {garbage}",
            f"IdentityFile {tmp_path}/missing",
        )
    for part in (
        f"host box ({server.user}@127.0.0.1:{server.port})",
        f"tried {key}",
        f"{garbage} is not a private key",
        f"{tmp_path}/missing is not there",
        "authorized_keys",
    ):
        assert part in str(caught.value)


def test_a_server_that_wants_more(servers: Servers, config: Config) -> None:
    server = servers(PasswordAuthentication="yes", AuthenticationMethods="publickey,password")
    with pytest.raises(NodeUnreachable, match="asks for password besides a key"):
        log_in(server, config, f"IdentityFile {server.client_key}")


def test_a_server_that_takes_no_keys(servers: Servers, config: Config) -> None:
    server = servers(PasswordAuthentication="yes", PubkeyAuthentication="no")
    with pytest.raises(NodeUnreachable, match="takes no keys, only password;"):
        log_in(server, config, f"IdentityFile {server.client_key}")


def test_too_many_keys(servers: Servers, config: Config, tmp_path: Path) -> None:
    server = servers(MaxAuthTries="3")
    keys = [make_key(tmp_path / f"key{n}") for n in range(6)]
    with pytest.raises(NodeUnreachable, match=r"logging in as .* was refused"):
        log_in(server, config, *(f"IdentityFile {key}" for key in keys))


@pytest.mark.needs("ssh")
def test_the_public_half(tmp_path: Path) -> None:
    for kind in ("ed25519", "rsa"):
        key = make_key(tmp_path / kind, kind)
        beside, key_line = public_blob(key), Path(f"{key}.pub").read_text()
        Path(f"{key}.pub").unlink()
        assert public_blob(encrypt(key)) == beside
        (tmp_path / "named").write_text(f"{key_line}\n")
        assert public_blob(tmp_path / "named") == beside
    assert public_blob(tmp_path / "missing") is None
    (tmp_path / "odd").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END\n")
    assert public_blob(tmp_path / "odd") is None

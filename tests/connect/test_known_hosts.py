"""Which keys the lines of a file of known hosts accept, as tables: no server is needed to compare a key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import stat
from pathlib import Path

import pytest

from flowlite.connect.ssh import host_keys
from flowlite.connect.ssh.host_keys import HostKey
from flowlite.connect.ssh.targets import SshTarget
from flowlite.errors import ConfigError, HostKeyError

GOOD = HostKey("ssh-ed25519", b"\x00\x00\x00\x0bssh-ed25519 good")
BAD = HostKey("ecdsa-sha2-nistp256", b"\x00\x00\x00\x13ecdsa-sha2-nistp256 bad")


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def target(file: Path, name: str = "lab") -> SshTarget:
    return SshTarget(name, "u", name, host_key_name=name, known_hosts=(str(file),))


def verdict(file: Path, key: HostKey = GOOD) -> str:
    try:
        host_keys.check(target(file), key)
    except HostKeyError as error:
        return "revoked" if error.revoked else "changed" if error.changed else "unknown"
    return "accepted"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "unknown"),
        ([f"lab {GOOD.line}"], "accepted"),
        ([f"LAB {GOOD.line} with a comment"], "accepted"),
        ([f"other,lab {GOOD.line}"], "accepted"),
        ([f"lab {BAD.line}"], "changed"),
        ([f"lab {BAD.line}", f"lab {GOOD.line}"], "accepted"),
        # Lines about others.
        ([f"lab2 {GOOD.line}"], "unknown"),
        ([f"other {GOOD.line}", f"lab {BAD.line}"], "changed"),
        ([f"#lab {GOOD.line}"], "unknown"),
        ([f"# lab {GOOD.line}"], "unknown"),
        ([f"@cert-authority lab {GOOD.line}"], "unknown"),
        ([f"@cert-authority * {GOOD.line}"], "unknown"),
        # Patterns.
        ([f"l?b {GOOD.line}"], "accepted"),
        ([f"x* {GOOD.line}"], "unknown"),
        ([f"*,!lab {GOOD.line}"], "unknown"),
        ([f"!lab,* {GOOD.line}"], "unknown"),
        ([f"*,!LAB {GOOD.line}"], "unknown"),
        ([f"*,!lab2 {GOOD.line}"], "accepted"),
        ([f"!lab2 {GOOD.line}"], "unknown"),
        # Hashed names, sound and damaged.
        ([f"{hashed('lab')} {GOOD.line}"], "accepted"),
        ([f"{hashed('lab')} {BAD.line}"], "changed"),
        ([f"{hashed('lab2')} {GOOD.line}"], "unknown"),
        ([f"|1|damaged {GOOD.line}"], "unknown"),
        ([f"|1|abc|def {GOOD.line}"], "unknown"),
        ([f"|1|| {GOOD.line}", f"lab {GOOD.line}"], "accepted"),
        # Damaged lines do not hide the others.
        (["lab ssh-ed25519", "lab", "@revoked", "lab ssh-ed25519 ???"], "unknown"),
        (["lab ssh-ed25519 ???", f"lab {GOOD.line}"], "accepted"),
        # Revoked is stronger than accepted, wherever it stands.
        ([f"@revoked lab {GOOD.line}"], "revoked"),
        ([f"lab {GOOD.line}", f"@revoked lab {GOOD.line}"], "revoked"),
        ([f"@revoked * {GOOD.line}", f"lab {GOOD.line}"], "revoked"),
        ([f"@revoked {hashed('lab')} {GOOD.line}", f"lab {GOOD.line}"], "revoked"),
        ([f"@revoked other {GOOD.line}", f"lab {GOOD.line}"], "accepted"),
        ([f"@revoked lab {BAD.line}", f"lab {GOOD.line}"], "accepted"),
        ([f"@revoked lab {BAD.line}"], "unknown"),
    ],
)
def test_what_is_said_of_a_key(home: Path, tmp_path: Path, lines: list[str], expected: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"{line}\n" for line in lines))
    assert verdict(file) == expected


def test_names_in_no_known_encoding_hide_nothing(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(b"caf\xe9 " + GOOD.line.encode() + b"\nlab " + GOOD.line.encode() + b"\n")
    assert verdict(file) == "accepted"


def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(
    home: Path, tmp_path: Path
) -> None:
    assert verdict(tmp_path / "known_hosts") == "unknown"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ConfigError, match="cannot be read"):
        host_keys.known(target(loop))


def test_the_message_names_the_kind_of_the_key(home: Path, tmp_path: Path) -> None:
    for key, kind in ((GOOD, "ED25519"), (BAD, "ECDSA"), (HostKey("ssh-rsa", b"r"), "RSA")):
        with pytest.raises(HostKeyError, match=f"its {kind} key"):
            host_keys.check(target(tmp_path / "none"), key)


def test_only_keys_that_are_not_revoked_are_pinned(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    lines = [f"lab {GOOD.line}", f"lab {BAD.line}", f"l* {GOOD.line}", f"@revoked lab {BAD.line}"]
    file.write_text("\n".join(lines))
    assert host_keys.pinned_lines(target(file)) == [f"lab {GOOD.line}"]


def test_trust_replaces_the_keys_of_that_host_and_leaves_all_other_lines(
    home: Path, tmp_path: Path
) -> None:
    home.mkdir()
    other = tmp_path / "none"
    own = home / "known_hosts"
    kept = ["# mine", f"lab2 {BAD.line}", f"@revoked lab {HostKey('ssh-rsa', b'r').line}", "lab"]
    own.write_text("\n".join([f"lab {BAD.line}", *kept, f"lab {BAD.line}"]) + "\n")
    assert host_keys.trust(target(other), GOOD) == own
    assert own.read_text().splitlines() == [*kept, f"lab {GOOD.line}"]
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert verdict(other) == "accepted"
    with pytest.raises(HostKeyError, match="revoked"):
        host_keys.trust(target(other), HostKey("ssh-rsa", b"r"))

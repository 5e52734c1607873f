"""What was read from files is used again, and never after one of them has changed."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowlite.connect.ssh import config as configuration
from flowlite.connect.ssh import host_keys, kept_values, login, targets
from flowlite.connect.ssh.kept_values import KeptValues, Sources
from flowlite.connect.ssh.targets import SshTarget, resolve_target
from flowlite.errors import ConfigError
from tests.connect.sshd import make_key

Config = Callable[..., Path]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are relied on as soon as they are written."""
    monkeypatch.setattr(kept_values, "_SETTLED_NS", -(2**62))


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The configuration files that are read."""
    found: list[Path] = []
    read = configuration._blocks

    def blocks(path: Path, host: str) -> object:
        found.append(path)
        return read(path, host)

    monkeypatch.setattr(configuration, "_blocks", blocks)
    return found


def test_a_value_is_kept_while_its_files_stay(tmp_path: Path, settled: None) -> None:
    kept: KeptValues[str] = KeptValues()
    present, absent = tmp_path / "present", tmp_path / "absent"
    present.write_text("a")
    sources = Sources()
    sources.note(present)
    sources.note(absent)
    assert kept.keep("key", "value", sources) == "value"
    assert kept.find("key") == "value"
    assert kept.find("another") is None
    absent.write_text("")
    assert kept.find("key") is None
    absent.unlink()
    assert kept.find("key") == "value"
    present.write_text("other")
    assert kept.find("key") is None


def test_another_file_of_the_same_size_and_time_is_seen(tmp_path: Path, settled: None) -> None:
    kept: KeptValues[str] = KeptValues()
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_text(path.name.ljust(8))
        os.utime(path, (1000.0, 1000.0))
    sources = Sources()
    sources.note(first)
    kept.keep("key", "value", sources)
    second.rename(first)
    assert kept.find("key") is None


def test_a_file_that_was_just_written_is_not_relied_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    # Whoever writes a file may set this time, as `cp -p` does.
    os.utime(path, (1000.0, 1000.0))
    sources = Sources()
    sources.note(path)
    assert not sources.lasting


def test_a_configuration_is_read_once(config: Config, readings: list[Path], settled: None) -> None:
    path = config("Host box\n  HostName 10.0.0.1\n")
    first = resolve_target("box", path)
    assert readings == [path]
    assert resolve_target("box", path) is first
    assert readings == [path]
    path.write_text("Host box\n  HostName 10.0.0.222\n")
    assert resolve_target("box", path).host == "10.0.0.222"
    path.unlink()
    assert resolve_target("box", path).host == "box"


def test_what_users_write_is_parsed_once(
    config: Config, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("Host box\n  HostName 10.0.0.1\n")
    written = ("box", {"host": "box"}, {"host": "box", "port": 23})
    found = [resolve_target(each, path) for each in written]
    monkeypatch.setattr(targets, "_table", None)
    assert [resolve_target(each, path) for each in written] == found
    assert [each.port for each in found] == [22, 22, 23]


def test_what_users_write_is_told_apart(config: Config, settled: None) -> None:
    path = config("Host box\n  User somebody\n  Port 2222\n")
    assert resolve_target("box", path).user == "somebody"
    assert resolve_target("me@box", path).user == "me"
    assert resolve_target({"host": "box", "port": 23}, path).port == 23
    assert resolve_target({"host": "box", "port": "24"}, path).port == 24
    assert resolve_target({"host": "box", "name": "other"}, path).name == "other"
    assert resolve_target("box", path).port == 2222


def test_a_file_that_comes_to_an_include_is_seen(
    config: Config, tmp_path: Path, readings: list[Path], settled: None
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "deep" / "one").mkdir(parents=True)
    single = tmp_path / "single"
    path = config(f"Include {tmp_path}/more/*.conf\nInclude {single}\n")
    assert resolve_target("box", path).host == "box"
    count = len(readings)
    assert resolve_target("box", path).host == "box"
    assert len(readings) == count
    (tmp_path / "more" / "a.conf").write_text("Host box\n  HostName 10.0.0.3\n")
    assert resolve_target("box", path).host == "10.0.0.3"
    (tmp_path / "more" / "a.conf").write_text("Host box\n  Port 24\n")
    single.write_text("Host box\n  HostName 10.0.0.4\n")
    assert (found := resolve_target("box", path)).host == "10.0.0.4"
    assert found.port == 24
    path = config(f"Include {tmp_path}/deep/*/*.conf\n")
    assert resolve_target("box", path).host == "box"
    (tmp_path / "deep" / "one" / "a.conf").write_text("Host box\n  HostName 10.0.0.5\n")
    assert resolve_target("box", path).host == "10.0.0.5"


def test_commands_and_variables_are_asked_each_time(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    flag = tmp_path / "flag"
    path = config(f'Match exec "test -e {flag}"\n  User there\nMatch all\n  User away\n')
    assert resolve_target("box", path).user == "away"
    flag.write_text("")
    assert resolve_target("box", path).user == "there"
    path.write_text("IdentityFile ${KEYS}/key\n")
    for place in ("/one", "/two"):
        monkeypatch.setenv("KEYS", place)
        assert resolve_target("box", path).identities == (f"{place}/key",)
    path.write_text("IdentityFile ~/key\n")
    for place in ("/one", "/two"):
        monkeypatch.setenv("HOME", place)
        assert resolve_target("box", path).identities == (f"{place}/key",)


def test_a_jump_host_s_configuration_counts(config: Config, settled: None) -> None:
    path = config("Host box\n  ProxyJump door\nHost door\n  HostName 10.0.0.6\n")
    assert [hop.host for hop in resolve_target("box", path).jump] == ["10.0.0.6"]
    path.write_text("Host box\n  ProxyJump door\nHost door\n  HostName 10.0.0.77\n")
    assert [hop.host for hop in resolve_target("box", path).jump] == ["10.0.0.77"]


def test_a_mistake_is_reported_each_time(config: Config, settled: None) -> None:
    path = config("Host box\n  Port many\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="many"):
            resolve_target("box", path)


def _target(path: Path, name: str = "box") -> SshTarget:
    return SshTarget("box", "me", name, host_key_name=name, known_hosts=(str(path),))


def _line(names: str, number: int, marker: str = "") -> str:
    return f"{marker}{names} ssh-ed25519 {base64.b64encode(b'key %d' % number).decode()}\n"


def _blobs(target: SshTarget) -> list[bytes]:
    return [found.key.blob for found in host_keys.known(target)]


def test_known_keys_have_the_order_of_the_file(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text(
        _line("b*", 1)
        + _line("Box,other", 2)
        + "# a comment\n\nnonsense\n"
        + _line("box,box", 3)
        + _line("b*,!box", 4)
        + _line("other", 5)
        + _line("box", 6, "@cert-authority ")
        + _line("box", 7, "@revoked ")
    )
    assert _blobs(_target(path)) == [b"key 1", b"key 2", b"key 3", b"key 7"]
    assert [found.revoked for found in host_keys.known(_target(path))] == [False] * 3 + [True]
    assert _blobs(_target(path, "bar")) == [b"key 1", b"key 4"]
    assert _blobs(_target(path, "other")) == [b"key 2", b"key 5"]


def test_threads_that_begin_together_read_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    path = tmp_path / "known"
    path.write_text(_line("box", 1))
    read, together = host_keys._text_lines, threading.Barrier(8)
    readings: list[str] = []

    def slowly(file: str) -> Iterator[str]:
        readings.append(file)
        # Without the lock, the others come here meanwhile.
        threading.Event().wait(0.05)
        return read(file)

    def ask(_: int) -> list[bytes]:
        together.wait()
        return [each.key.blob for each in host_keys._in_file(str(path), "box")]

    monkeypatch.setattr(host_keys, "_text_lines", slowly)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [[b"key 1"]] * 8
    assert readings == [str(path)]


def test_a_change_of_the_known_keys_is_seen(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None
) -> None:
    path = tmp_path / "known"
    assert _blobs(_target(path)) == []
    path.write_text(_line("box", 1))
    assert _blobs(_target(path)) == [b"key 1"]
    monkeypatch.setattr(host_keys, "_text_lines", lambda file: pytest.fail("it is read again"))
    assert _blobs(_target(path)) == [b"key 1"]
    monkeypatch.undo()
    host_keys.own_file().parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_line("box", 2000))
    assert _blobs(_target(path)) == [b"key 2000"]
    path.unlink()
    assert _blobs(_target(path)) == []


@pytest.mark.needs("ssh")
def test_a_private_key_is_read_once(tmp_path: Path, settled: None) -> None:
    path = make_key(tmp_path / "key")
    tried, target = login._TriedKeys(), _target(tmp_path / "known")
    first = login._load(str(path), target, tried)
    assert first is not None
    assert login._load(str(path), target, tried) is first
    path.unlink()
    Path(f"{path}.pub").unlink()
    assert login._load(str(path), target, tried) is None
    make_key(path)
    os.utime(path, (1000.0, 1000.0))
    second = login._load(str(path), target, tried)
    assert second is not None
    assert second.asbytes() != first.asbytes()

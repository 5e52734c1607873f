"""Keys, the id of a FLOW_HOME, and pauses between looks."""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowlite.errors import ProviderError
from provider_adapters.identity import home_id, owner
from provider_adapters.rented import ports
from provider_adapters.rented.cloud_polls import PAUSES, PORTS, CloudPolls
from provider_adapters.rented.keys import client_key, client_public, new_key
from provider_adapters.rented.pins import Pins
from provider_adapters.ssh.records import Records


@pytest.mark.needs("ssh")
def test_openssh_reads_our_keys(tmp_path: Path) -> None:
    pair = new_key()
    file = tmp_path / "key"
    file.write_text(pair.private)
    file.chmod(0o600)
    said = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(file)], capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[:2] == pair.public.split()
    assert new_key().public != pair.public


def test_the_clients_key_is_made_once_whoever_asks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        publics = set(pool.map(lambda _: client_public(tmp_path), range(16)))
    assert len(publics) == 1
    path = client_key(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]
    assert path.with_name("id_ed25519.pub").read_text().strip() in publics


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    client_key(tmp_path).chmod(0o640)
    with pytest.raises(ProviderError, match="chmod 600"):
        client_public(tmp_path)


def test_a_key_that_is_none_is_explained(tmp_path: Path) -> None:
    client_key(tmp_path).write_text("nonsense")
    with pytest.raises(ProviderError, match="move it away"):
        client_public(tmp_path)


def test_a_home_has_one_id_for_all_providers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: home_id(tmp_path), range(16)))
    assert len(found) == 1
    (name,) = found
    assert re.fullmatch(r"[0-9a-f]{16}", name)
    assert Records(tmp_path / "ssh").client == name
    assert [each.name for each in tmp_path.iterdir()] == ["client"]


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProviderError, match="file"):
        home_id(tmp_path / "file" / "home")


def test_an_owner_is_a_person_and_a_machine() -> None:
    assert re.fullmatch(r"[^@]+@[^@.]+", owner())


def test_an_owner_of_a_windows_domain_can_be_a_tag_everywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOGNAME", "CORP\\alice")
    assert owner().startswith("CORP-alice@")


def test_pins_are_nothing_but_keys(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "known_hosts")
    pins.write("i-1", ["ssh-ed25519 AAAA", "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"])
    assert pins.read("i-1") == ["ssh-ed25519 AAAA", "ssh-ed25519 BBBB"]
    with pytest.raises(ProviderError, match="not an ed25519 key"):
        pins.write("i-1", ["ssh-ed25519 AAAA\n* ssh-ed25519 CCCC"])
    with pytest.raises(ProviderError, match="id of an instance"):
        pins.read("../../id_ed25519")


def test_the_cloud_is_asked_ever_more_rarely_and_ports_often() -> None:
    now = 0.0
    looks = CloudPolls(lambda: now)
    asked = []
    while now < 120:
        if looks.due("k"):
            looks.looked("k")
            asked.append(now)
        pause = looks.pause("k", addresses_known=len(asked) > 1)
        assert 0 < pause <= (PORTS if len(asked) > 1 else PAUSES[0])
        now = round(now + pause, 6)
    assert [b - a for a, b in itertools.pairwise(asked)][: len(PAUSES)] == list(PAUSES)
    assert looks.due("another")
    looks.forget("k")
    assert looks.due("k")


def test_ports_are_tried_all_at_a_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        places = [server.getsockname(), closed.getsockname(), ("not an address", 22)]
        assert ports.answering(places, 0.5) == [True, False, False]
    assert ports.answering([], 0.5) == []


def test_a_port_that_opens_meanwhile_is_found_at_once() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        opening = threading.Timer(0.4, server.listen)
        began = time.monotonic()
        opening.start()
        assert ports.answering([server.getsockname()], 30.0) == [True]
        assert 0.4 <= time.monotonic() - began < 30.0
        opening.join()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_few_sockets_are_open_however_long_nothing_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    seen: list[int] = []
    begin = ports._begin

    def noting(address: str, port: int) -> socket.socket | None:
        seen.append(opened())
        return begin(address, port)

    monkeypatch.setattr(ports, "_begin", noting)

    with socket.socket() as server, ExitStack() as held:
        server.bind(("127.0.0.1", 0))
        # Once nobody accepts those that wait, what others send is dropped, as by a machine that is not there.
        server.listen(0)
        for _ in range(2):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        before = opened()
        assert ports.answering([server.getsockname()] * 50, 1.2) == [False] * 50
        # Often enough that each but the first and the latest was given up.
        assert len(seen) > 3 * 50
        assert 50 <= max(seen) - before <= 2 * 50 + 4
        assert opened() <= before

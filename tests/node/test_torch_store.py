"""Clients of torch's store go there when it listens, and never before; nobody waits who need not, or for long."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.mount_namespace import hosts_file
from flowlite.node.system import addresses, processes
from flowlite.node.worker import torch_store
from tests.connect.sshd import free_port
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="the table of sockets is Linux's")


class Rendezvous(types.ModuleType):
    """The module of torch, which makes stores; it notes whether their port was listened on then."""

    def __init__(self) -> None:
        super().__init__("rendezvous")
        self.found: list[bool] = []
        self.TCPStore = self.make

    def make(self, host_name: str, port: int, *_: Any, **__: Any) -> str:
        self.found.append(torch_store._answers(host_name, port))
        return f"store of {host_name}"

    def come(self, *arguments: Any, **options: Any) -> threading.Thread:
        """A rank that wants a store."""
        torch_store.come_when_it_listens(self)
        rank = threading.Thread(target=self.TCPStore, args=arguments, kwargs=options)
        rank.start()
        return rank


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the store were on another machine."""
    monkeypatch.setattr(addresses, "address_towards", lambda host: "192.0.2.1")


@pytest.mark.parametrize("place", ["this machine", "another machine"])
@pytest.mark.parametrize("positional", [False, True])
def test_a_client_comes_when_the_store_listens(
    place: str, positional: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "another machine":
        request.getfixturevalue("elsewhere")
        monkeypatch.setattr(hosts_file, "gang_is_known", lambda: True)
    looks: list[int] = []
    look = torch_store._is_listened_on if place == "this machine" else torch_store._answers

    def noting(*where: Any) -> bool:
        looks.append(1)
        return look(*where)

    monkeypatch.setattr(torch_store, look.__name__, noting)
    module, port = Rendezvous(), free_port()
    if positional:
        rank = module.come("127.0.0.1", port, 4, False, datetime.timedelta(minutes=30))
    else:
        rank = module.come(host_name="127.0.0.1", port=port, is_master=False)
    eventually(lambda: len(looks) > 3, what="some looks")
    assert not module.found
    with socket.create_server(("127.0.0.1", port)):
        rank.join(90)
    assert module.found == [True]


def test_an_address_of_ipv6_is_seen_as_well() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as store:
        assert torch_store._is_listened_on(store.getsockname()[1])


def test_the_host_of_the_store_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_store, "LONGEST_SECONDS", 1e6)
    module = Rendezvous()
    module.come(host_name="127.0.0.1", port=free_port(), is_master=True).join(90)
    assert module.found == [False]


@pytest.mark.usefixtures("elsewhere")
def test_where_a_name_server_would_be_asked_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_store, "LONGEST_SECONDS", 1e6)
    assert not hosts_file.gang_is_known()
    module = Rendezvous()
    module.come(host_name="127.0.0.1", port=free_port(), is_master=False).join(90)
    assert module.found == [False]


def test_a_store_that_never_listens_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_store, "LONGEST_SECONDS", 0.2)
    module = Rendezvous()
    for options in ({}, {"timeout": datetime.timedelta(seconds=0.1)}):
        port = free_port()
        module.come(host_name="127.0.0.1", port=port, is_master=False, **options).join(90)
    assert module.found == [False, False]


def test_another_torch_that_has_no_such_class_is_left_alone() -> None:
    module = types.ModuleType("rendezvous")
    torch_store.come_when_it_listens(module)
    assert not hasattr(module, "TCPStore")


def test_the_hosts_file_tells_whether_the_gang_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n")
    monkeypatch.setattr(hosts_file, "HOSTS", str(file))
    assert not hosts_file.gang_is_known()
    hosts_file.add_gang(str(file), ["10.0.0.1", "10.0.0.2"])
    assert hosts_file.gang_is_known()


RANK = """
import os, sys
from flowlite.node.worker import torch_teardown as torch_care, torch_store
torch_care.settle()
import torch.distributed as dist
rank, port = sys.argv[1:]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2")
look = torch_store._is_listened_on
torch_store._is_listened_on = lambda port: look(port) or print("early", flush=True)
dist.init_process_group("gloo")
dist.barrier()
print("met", flush=True)
torch_care.leave_together()
os._exit(0)
"""


def test_torch_itself_meets_like_that() -> None:
    command = [sys.executable, "-c", RANK]
    port = str(free_port())
    late = subprocess.Popen([*command, "1", port], stdout=subprocess.PIPE, text=True)
    assert late.stdout is not None
    assert late.stdout.readline() == "early\n"
    first = subprocess.run(
        [*command, "0", port], capture_output=True, text=True, timeout=250, check=False
    )
    assert first.stdout == "met\n", first.stderr
    assert late.communicate(timeout=250)[0].endswith("met\n")
    assert late.returncode == 0

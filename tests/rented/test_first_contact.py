"""First contact with machines that boot, on test hosts that run the script of the first boot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect.ssh import host_key_scan, link
from flowlite.connect.ssh.connection import SshConnection
from flowlite.errors import HostKeyError, NodeUnreachable
from flowlite.provider import Instance, Plan
from provider_adapters.rented import first_contact as contacts
from provider_adapters.rented import first_contact_commands
from provider_adapters.rented.first_contact import (
    Contact,
    MachineAccess,
    NotYet,
    ReadyMachine,
    holding_up,
)
from provider_adapters.rented.keys import new_key
from provider_adapters.rented.node import lease_seconds, node_settings
from provider_adapters.rented.pins import Pins
from tests.helpers import eventually
from tests.rented.booting import boot, run_script

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster


class Death(BaseException):
    """The client's process ends just here."""


@pytest.fixture
def on_laptop(hosts: Cluster, flow_home: Path) -> Iterator[Cluster]:
    with hosts.enter_laptop():
        yield hosts
        link.close_idle()


def meet(
    contact: Contact, places: list[MachineAccess], agent: Path | None = None
) -> list[ReadyMachine]:
    """Tries until all are met; sshd is not there for a moment while it takes another key."""

    def probe() -> list[ReadyMachine]:
        found = contact.reach(places, task="t1", minor="3.11", agent=agent)
        assert all(each.stage != "wrong" for each in found if isinstance(each, NotYet)), found
        ready = [each for each in found if isinstance(each, ReadyMachine)]
        return ready if len(ready) == len(places) else []

    return eventually(probe, every=0.1)


def pinned(home: Path, place: MachineAccess) -> list[str]:
    return Pins(home / "cloud" / "known_hosts").read(place.id)


def shown(contact: Contact, place: MachineAccess) -> str:
    return host_key_scan.fetch(contact._target(place)).line


def test_machines_that_are_met_have_our_program_waiting(
    on_laptop: Cluster, flow_home: Path
) -> None:
    agent = build_agent_zip(flow_home).path
    places = boot(on_laptop, flow_home, new_key())
    contact = Contact(flow_home, "cloud")
    for machine in meet(contact, places, agent):
        with contact.connect(machine.data) as connection:
            there = connection.run(["sha256sum", f"/root/.flowlite/blobs/{agent.stem}"])
            assert there.stdout.split()[0].decode() == agent.stem
            assert isinstance(connection, SshConnection)
            assert connection.ask({"do": "hello"}, timeout=90) is not None


@pytest.mark.parametrize("content", [b"", b"raise SystemExit(3)"], ids=["empty", "fails"])
def test_where_no_program_can_wait_the_machine_is_met_all_the_same(
    on_laptop: Cluster, flow_home: Path, content: bytes
) -> None:
    agent = flow_home / f"{hashlib.sha256(content).hexdigest()}.pyz"
    agent.write_bytes(content)
    contact = Contact(flow_home, "cloud")
    (machine,) = meet(contact, boot(on_laptop, flow_home, new_key())[:1], agent)
    with contact.connect(machine.data) as connection:
        assert connection.run(["echo", "fine"]).stdout == b"fine\n"


def test_machines_are_met_and_get_keys_of_their_own(on_laptop: Cluster, flow_home: Path) -> None:
    key = new_key()
    places = boot(on_laptop, flow_home, key)
    contact = Contact(flow_home, "cloud")
    found = meet(contact, places)
    own = [pinned(flow_home, place) for place in places]
    assert all(len(each) == 1 for each in own)
    assert len({each[0] for each in own} | {key.public}) == len(places) + 1
    assert [[shown(contact, place)] for place in places] == own
    for host, machine in zip(on_laptop, found, strict=True):
        assert machine.data["private_address"] == host.address
        with contact.connect(machine.data) as connection:
            assert connection.run(["hostname"]).stdout.decode().strip() == host.name
        left = host.exec(["ls", "/var/lib/flowlite"]).stdout.split()
        assert not {"first", "own", "own.new"} & set(left)
    instance = Instance("i-node00", "t1", address=on_laptop[0].address, data=found[0].data)
    plan = Plan("cloud", "m1", 4, 1, options={"workdir": "/data"})
    settings = node_settings(plan, instance, preemption={"kind": "ec2"})
    assert settings.home == "/root/.flowlite/tasks/t1-i-node00"
    assert (settings.bind, settings.workdir) == (on_laptop[0].address, "/data")
    assert settings.lease == {"file": "/run/flowlite/lease", "seconds": 600.0}
    assert settings.preemption == {"kind": "ec2"}
    contact.forget("i-node00")
    assert pinned(flow_home, places[0]) == []


@pytest.mark.parametrize("point", [0, 2, 3, 5])
def test_whatever_dies_the_machine_is_known_by_the_key_it_shows(
    on_laptop: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    places = boot(on_laptop[:1], flow_home, new_key())
    contact = Contact(flow_home, "cloud")
    eventually(lambda: _is_up(contact, places[0]))
    steps = iter(range(100))

    def dying(real: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            dies = next(steps) == point
            if dies and not after:
                raise Death
            done = real(*arguments, **options)
            if dies:
                raise Death
            return done

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Pins, "write", dying(Pins.write, after=True))
        patch.setattr(first_contact_commands, "ask", dying(first_contact_commands.ask, after=True))
        patch.setattr(
            first_contact_commands,
            "change_over",
            dying(first_contact_commands.change_over, after=True),
        )
        patch.setattr(Contact, "_shows", dying(Contact._shows, after=False))
        patch.setattr(contacts, "everywhere", lambda items, do, *_: [do(each) for each in items])
        with pytest.raises(Death):
            contact.reach(places, task="t1", minor="3.11")
    link.close_idle()
    again = Contact(flow_home, "cloud")
    meet(again, places)
    assert pinned(flow_home, places[0]) == [shown(again, places[0])]


def _is_up(contact: Contact, place: MachineAccess) -> bool:
    try:
        return shown(contact, place) == place.host_key
    except NodeUnreachable:
        return False


def test_as_long_as_one_is_silent_nothing_is_done(on_laptop: Cluster, flow_home: Path) -> None:
    places = boot(on_laptop[:1], flow_home, new_key())
    on_laptop[1].kill()
    places.append(replace(places[0], id="i-other", address=on_laptop[1].address))
    contact = Contact(flow_home, "cloud")
    eventually(lambda: _is_up(contact, places[0]))
    found = contact.reach(places, task="t1")
    assert [each.stage for each in found if isinstance(each, NotYet)] == ["booting", "silent"]
    assert on_laptop[1].address in found[1].why  # type: ignore[union-attr]
    assert holding_up(found) == [found[1]]
    assert pinned(flow_home, places[0]) == []


def test_a_machine_that_shows_another_key_is_sent_nothing(
    on_laptop: Cluster, flow_home: Path
) -> None:
    # Its script has not run yet; or somebody else answers at that address.
    place = MachineAccess("i-1", on_laptop[0].address, new_key().public)
    contact = Contact(flow_home, "cloud")
    for _ in range(3):
        (found,) = contact.reach([place], task="t1")
        assert isinstance(found, NotYet)
        assert found.stage == "booting"
        assert "SHA256:" in found.why
    with (
        contact.connect({"place": asdict(place)}) as connection,
        pytest.raises(HostKeyError),
    ):
        connection.run(["true"])


def test_a_jump_host_that_is_not_known_ends_it(
    on_laptop: Cluster, flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines boot, and may show another key at first; a host on the way to them does not."""
    config = tmp_path / "ssh_config"
    known = "UserKnownHostsFile"
    lines = on_laptop.ssh_config.read_text().splitlines()
    config.write_text(
        "".join(f"{known} /dev/null\n" if known in each else f"{each}\n" for each in lines)
    )
    monkeypatch.setenv("FLOW_SSH_CONFIG", str(config))
    place = MachineAccess("i-1", on_laptop[1].address, new_key().public, jump="node00")
    with pytest.raises(HostKeyError, match="jump host node00") as caught:
        Contact(flow_home, "cloud").reach([place], task="t1")
    assert caught.value.cure == "flow hosts trust node00"


def test_jump_hosts_are_logged_in_to_before_there_are_machines(
    on_laptop: Cluster, flow_home: Path
) -> None:
    contact = Contact(flow_home, "cloud", str(on_laptop.ssh_config))
    contact.check_jump("node00")
    contact.check_jump("node00,node01")
    on_laptop[2].kill()
    with pytest.raises(NodeUnreachable, match="node02"):
        contact.check_jump("node00,node02")


def test_a_machine_without_what_the_script_left_is_wrong(
    on_laptop: Cluster, flow_home: Path
) -> None:
    places = boot(on_laptop[:1], flow_home, new_key())
    contact = Contact(flow_home, "cloud")
    eventually(lambda: _is_up(contact, places[0]))
    assert run_script(on_laptop[0], "mv /var/lib/flowlite /var/lib/elsewhere").returncode == 0
    (found,) = contact.reach(places, task="t1")
    assert isinstance(found, NotYet)
    assert found.stage == "wrong"


def test_nothing_of_the_users_ssh_is_used(
    on_laptop: Cluster, flow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n  User nobody\n  Port 1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nothing"))
    places = boot(on_laptop[:1], flow_home, new_key())
    meet(Contact(flow_home, "cloud"), places)


def test_a_lease_outlasts_the_pause_between_attempts() -> None:
    assert lease_seconds(0) == 600.0
    assert lease_seconds(3600) > 3600
    assert lease_seconds(0, setting=180.0) == 180.0


@pytest.mark.parametrize(
    "command",
    [
        lambda connection: first_contact_commands.ask(connection, "i-1", None),
        lambda connection: first_contact_commands.change_over(connection, "i-1"),
    ],
    ids=["facts", "key"],
)
def test_a_machine_that_runs_nothing_is_unreachable(command: Callable[[Any], Any]) -> None:
    class Hangs:
        def run(self, *_: Any, **__: Any) -> None:
            raise TimeoutError

    with pytest.raises(NodeUnreachable, match="it runs nothing within 60 s"):
        command(Hangs())

"""A way on which full packets are lost, and nobody is told: as in VPNs that let no ICMP through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from flowlite.connect.ssh import link, tcp_segments, transport
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.errors import NodeUnreachable

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host, Laptop

ENOUGH = 300_000


@contextmanager
def losing(sender: Host | Laptop, receiver: Host | Laptop, limit: int) -> Iterator[None]:
    """Loses each packet between two machines that is longer than that, on one way."""
    offloads = ("tso", "gso")

    def done(machine: Host | Laptop, *argv: str) -> None:
        found = machine.exec(argv)
        assert found.returncode == 0, found.stderr

    def offload(how: str) -> None:
        for machine in (sender, receiver):
            done(machine, "ethtool", "-K", "eth0", *(w for each in offloads for w in (each, how)))

    # With them, many packets cross the cable as one.
    offload("off")
    chain = "add chain inet hole in { type filter hook input priority 0; }; "
    rule = f"add rule inet hole in ip saddr {sender.address} ip length > {limit} drop"
    done(receiver, "nft", f"add table inet hole; {chain}{rule}")
    try:
        yield
    finally:
        done(receiver, "nft", "delete table inet hole")
        offload("on")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What to call once a host is silent."""
    monkeypatch.setattr(tcp_segments, "_silent", set())
    monkeypatch.setattr(transport.Transport, "_active_check_timeout", 0.1)
    return lambda: monkeypatch.setattr(transport, "PULSE_SECONDS", 1.0)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_host_whose_full_packets_are_lost_is_reached_with_smaller_ones(
    hosts: Cluster, impatient: Callable[[], None], way: str
) -> None:
    host, laptop = hosts[0], hosts.laptop
    ends = (laptop, host) if way == "there" else (host, laptop)
    with hosts.enter_laptop(), ExitStack() as held:
        connection = held.enter_context(SshConnection(resolve_target(host.name, hosts.ssh_config)))
        held.callback(link.close_idle)

        def exchange() -> None:
            echoed = connection.run(["cat"], input=bytes(ENOUGH), timeout=90)
            assert echoed.stdout == bytes(ENOUGH)

        exchange()
        connection._link.shut()
        held.enter_context(losing(*ends, 1400))
        # The login comes through.
        connection.open()
        impatient()
        with pytest.raises(
            NodeUnreachable, match=r"right after the login; .* full packets are lost on the way"
        ):
            exchange()
        exchange()


def test_a_host_that_is_silent_after_its_greeting_is_named(
    hosts: Cluster, impatient: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first packet of SSH is lost already."""
    monkeypatch.setattr(transport, "HANDSHAKE_SECONDS", 4.0)
    host, laptop = hosts[0], hosts.laptop
    with (
        hosts.enter_laptop(),
        losing(laptop, host, 800),
        SshConnection(resolve_target(host.name, hosts.ssh_config)) as connection,
        pytest.raises(
            NodeUnreachable, match=r"greets as SSH, and then .* full packets are lost on the way"
        ),
    ):
        connection.open()

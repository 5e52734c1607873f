"""The switch: a bridge in a network namespace of its own, with a cable to each host and one to the laptop.

This code runs in a process in the switch's namespace. A host's namespace is held by a descriptor, so that the host has
an address and refuses connections even when no process runs on it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flowlite.testing.hosts import system
from flowlite.testing.hosts.relay import relay

NETWORK = "10.77.0"
# Rented machines have addresses of their own, to which the laptop has no route, and public ones for the laptop.
RENTED = "10.77.1"
PUBLIC = "10.78.0"
_WORLD = "198.51.100.0/24"
LAPTOP = "laptop"
LAPTOP_ADDRESS = f"{NETWORK}.1"
LAPTOP_PUBLIC_ADDRESS = f"{PUBLIC}.1"
# An unused address. Packets sent to it vanish without an answer.
NOBODY = f"{NETWORK}.254"
_NOBODYS_MAC = "02:00:00:00:00:fd"
_TABLE, _GUARD = "flowlite_hosts", "flowlite_guard"


def address_of(index: int) -> str:
    """The address of a host by its number."""
    return f"{NETWORK}.{index + 11}"


def rented_address_of(index: int) -> tuple[str, str]:
    """The private and the public address of a slot by its number."""
    return f"{RENTED}.{index + 11}", f"{PUBLIC}.{index + 11}"


def served_address_of(index: int) -> str:
    """The address of a file server by its number. They are assigned from the end of the rented machines' range."""
    return f"{RENTED}.{253 - index}"


@dataclass
class Port:
    """A port of the switch, with its cable.

    Attributes:
        name: The interface on the switch's side.
        address: The address of the machine at the other end.
        network: A descriptor of the machine's network namespace.
        relay: The process id of the relay between the port and the bridge, if the cable is slow.
        cut: Whether all frames are dropped.
        blocked: Addresses whose frames are dropped.
        guarded: Whether incoming packets are filtered.
    """

    name: str
    address: str
    network: int
    relay: int | None = None
    cut: bool = False
    blocked: set[str] = field(default_factory=set)
    guarded: bool = False

    @property
    def uplink(self) -> str:
        """The interface that is attached to the bridge."""
        return f"{self.name}-far" if self.relay is not None else self.name


class Switch:
    """The bridge and its ports. `fork` makes a child process that dies with this one."""

    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        self._fork = fork
        self.ports: dict[str, Port] = {}
        _ip(["link set lo up", "link add bridge type bridge forward_delay 0 stp_state 0"])
        _ip(["link set bridge up"])

    def plug(
        self,
        cables: Sequence[tuple[str, str, str]],
        tag: str,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Connects machines, given as (machine, port name, address). The tag is set on the laptop's loopback interface.

        `more` maps the machines that have a second address to that address.
        """
        ports = {n: Port(port, address, system.new_network()) for n, port, address in cables}
        commands = []
        for port in ports.values():
            peer = f"peer name eth0 address {_mac_of(port.address)} netns /proc/{os.getpid()}/fd/{port.network}"
            commands += [f"link add {port.name} type veth {peer}"]
            commands += [f"link set {port.name} master bridge up"]
        _ip(commands)
        for name, port in ports.items():
            with system.inside_network(port.network):
                system.configure("lo")
                system.configure("eth0", port.address)
                if second := (more or {}).get(name):
                    system.configure("eth0:1", second)
                if name == LAPTOP:
                    # On the loopback interface, which remains when the switch and its cables are gone.
                    _ip([f"link set lo alias {tag}"])
                    # Nothing answers there, but a machine that looks up its outgoing address finds its public one.
                    if second:
                        _ip([f"route add {_WORLD} dev eth0 src {second}"])
        system.wait_for_carrier([port.name for port in ports.values()])
        self.ports.update(ports)

    def _port(self, name: str) -> Port:
        if name not in self.ports:
            raise RuntimeError(f"{name} has no power; start it first")
        return self.ports[name]

    def unplug(self, name: str) -> Port:
        """Removes a machine. Packets that its kernel has not sent yet are never sent."""
        port = self.ports.pop(name)
        self._stop_relay(port)
        _ip([f"link del {port.name}"])
        os.close(port.network)
        return port

    def partition(self, name: str, *, cut: bool) -> None:
        """Drops all frames of a machine, or forwards them again. Neither side is notified."""
        port = self._port(name)
        if port.cut != cut:
            _ip([f"link set {port.uplink} {'nomaster' if cut else 'master bridge'}"])
        port.cut = cut

    def block(self, name: str, addresses: Sequence[str]) -> None:
        """Drops the frames between a machine and these addresses. An empty list removes the rule."""
        port = self._port(name)
        with system.inside_network(port.network):
            if port.blocked:
                _run(["nft", "delete", "table", "inet", _TABLE])
            port.blocked = set(addresses)
            if port.blocked:
                who = "{ " + ", ".join(sorted(port.blocked)) + " }"
                _nft(f"""table inet {_TABLE} {{
                    chain from {{ type filter hook input priority 0; ip saddr {who} drop
                    }}
                    chain to {{ type filter hook postrouting priority 0; ip daddr {who} drop
                    }}
                }}""")

    def guard(self, name: str, admitted: Sequence[str] | None) -> None:
        """Drops incoming packets but replies and what is admitted, in nft's syntax. None admits everything."""
        port = self._port(name)
        with system.inside_network(port.network):
            if port.guarded:
                _run(["nft", "delete", "table", "inet", _GUARD])
            port.guarded = admitted is not None
            if admitted is not None:
                lines = "\n".join(f"{words} accept" for words in admitted)
                _nft(f"""table inet {_GUARD} {{
                    chain input {{ type filter hook input priority 10; policy drop;
                        iif lo accept
                        ct state established,related accept
                        {lines}
                    }}
                }}""")

    def delay(self, name: str, delay_ms: float, loss_percent: float) -> None:
        """Makes a machine's cable slow (in each direction) and lossy. Zero for both restores it."""
        port = self._port(name)
        was_cut = port.cut
        self.partition(name, cut=True)
        self._stop_relay(port)
        if delay_ms or loss_percent:
            far, near = f"{port.name}-far", f"{port.name}-near"
            _ip([f"link add {near} type veth peer name {far}", f"link set {near} up"])
            _ip([f"link set {far} up"])
            system.wait_for_carrier([near, far])
            for interface in (port.name, near, far):
                _no_offloads(interface)
            with system.inside_network(port.network):
                _no_offloads("eth0")
            waiting, ready = os.pipe()
            port.relay = self._fork(lambda: relay(port.name, near, delay_ms, loss_percent, ready))
            os.close(ready)
            os.read(waiting, 1)
            os.close(waiting)
        self.partition(name, cut=was_cut)

    def silence(self, name: str) -> str:
        """Returns an address that swallows everything this machine sends to it."""
        with system.inside_network(self._port(name).network):
            _ip([f"neigh replace {NOBODY} lladdr {_NOBODYS_MAC} dev eth0 nud permanent"])
        return NOBODY

    def _stop_relay(self, port: Port) -> None:
        if port.relay is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(port.relay, signal.SIGKILL)
        os.waitpid(port.relay, 0)
        port.relay = None
        _ip([f"link del {port.name}-far"])


def _mac_of(address: str) -> str:
    # The address survives a power cut, as a real card's does; peers would otherwise use the old one for a minute.
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _ip(commands: Sequence[str]) -> None:
    _run(["ip", "-batch", "-"], "\n".join(commands) + "\n")


def _nft(rules: str) -> None:
    _run(["nft", "-f", "-"], rules)


def _no_offloads(interface: str) -> None:
    switches = ("tso", "gso", "gro", "tx", "rx")
    _run(["ethtool", "-K", interface, *(word for s in switches for word in (s, "off"))])


def _run(argv: Sequence[str], text: str = "") -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}\n{text}")

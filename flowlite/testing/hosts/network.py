"""The switch: a bridge in a network namespace of its own, with one cable to every host and one to the laptop.

Runs in the process that lives in the switch's namespace. A host's namespace is kept by a descriptor, so that it has an
address, and refuses connections, also when nothing runs on it.
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
# Machines that are rented have their own addresses here, which the laptop has no way to, and others for the laptop.
RENTED = "10.77.1"
PUBLIC = "10.78.0"
_WORLD = "198.51.100.0/24"
LAPTOP = "laptop"
LAPTOP_ADDRESS = f"{NETWORK}.1"
LAPTOP_PUBLIC_ADDRESS = f"{PUBLIC}.1"
# Nobody has it: what is sent there vanishes without an answer.
NOBODY = f"{NETWORK}.254"
_NOBODYS_MAC = "02:00:00:00:00:fd"
_TABLE, _GUARD = "flowlite_hosts", "flowlite_guard"


def address_of(index: int) -> str:
    """The address of a host by its number."""
    return f"{NETWORK}.{index + 11}"


def rented_address_of(index: int) -> tuple[str, str]:
    """The two addresses of a slot by its number: among its like, and for the laptop."""
    return f"{RENTED}.{index + 11}", f"{PUBLIC}.{index + 11}"


def served_address_of(index: int) -> str:
    """The address of a file server by its number: among those of rented machines, from the other end."""
    return f"{RENTED}.{253 - index}"


@dataclass
class Port:
    """One socket of the switch with the cable in it.

    Attributes:
        name: The interface on the switch's side.
        address: What the machine at the other end is called.
        network: Descriptor of its network namespace.
        relay: Process id of the slow wire between it and the bridge, if there is one.
        cut: Whether its frames go nowhere.
        blocked: Whose frames go nowhere.
        guarded: Whether only some may come in.
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
        """The interface that belongs to the bridge."""
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
        """Connects machines, given as (their name, the port's name, address). The laptop bears the tag.

        `more` has the second addresses of those that have one.
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
                    # On the interface that stays when the switch, and with it every cable, is gone.
                    _ip([f"link set lo alias {tag}"])
                    # Nobody is there; who asks by which address the world would see him learns the public one.
                    if second:
                        _ip([f"route add {_WORLD} dev eth0 src {second}"])
        system.wait_for_carrier([port.name for port in ports.values()])
        self.ports.update(ports)

    def _port(self, name: str) -> Port:
        if name not in self.ports:
            raise RuntimeError(f"{name} has no power; start it first")
        return self.ports[name]

    def unplug(self, name: str) -> Port:
        """Takes a machine off for good; what its kernel still wanted to send is never sent."""
        port = self.ports.pop(name)
        self._stop_relay(port)
        _ip([f"link del {port.name}"])
        os.close(port.network)
        return port

    def partition(self, name: str, *, cut: bool) -> None:
        """Has all frames of a machine vanish, or arrive again. Neither side is told."""
        port = self._port(name)
        if port.cut != cut:
            _ip([f"link set {port.uplink} {'nomaster' if cut else 'master bridge'}"])
        port.cut = cut

    def block(self, name: str, addresses: Sequence[str]) -> None:
        """Has the frames between a machine and these addresses vanish; none for no such rule."""
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
        """Lets nothing in but answers and what is admitted, in the words of nft; None for everything."""
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
        """Makes a machine's cable slow (each way) and lossy; zero of both makes it a good one again."""
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
        """Gives a machine an address to send to that swallows everything, and says which."""
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
    # The same after a power cut, as with a real card; others would go on sending to the old one for a minute.
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

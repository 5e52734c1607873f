"""The addresses and interfaces of this machine that reach another node. No name is resolved."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable

_SIOCGIFNETMASK = 0x891B
_SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915


def address_towards(address: str, port: int = 9) -> str | None:
    """Returns this machine's own address on the route to another one, or None without a route. Sends nothing."""
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def interface_towards(address: str) -> str | None:
    """Returns the name of the interface that reaches another node (`eth0`, `lo`), or None if it is not known.

    Frameworks need this name. If the host name resolves to 127.0.1.1, as on Debian, gloo would otherwise announce an
    address that its peers cannot reach.
    """
    own = address_towards(address)
    if own is None:
        return None
    own = own.partition("%")[0]
    return _with_ipv6(own) if ":" in own else _with_ipv4(own)


def network_of(addresses: Iterable[str]) -> str | None:
    """Returns the network (`10.0.0.0/16`) of a local interface that contains all of these addresses, or None."""
    import ipaddress

    wanted = [ipaddress.ip_address(each) for each in addresses]
    if sys.platform != "linux" or any(each.version != 4 for each in wanted):
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                own, mask = (
                    socket.inet_ntoa(fcntl.ioctl(probe.fileno(), what, request)[20:24])
                    for what in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:
                continue
            network = ipaddress.ip_network(f"{own}/{mask}", strict=False)
            if wanted and all(each in network for each in wanted):
                return str(network)
    return None


def _with_ipv4(own: str) -> str | None:
    import fcntl

    loopback = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            address = socket.inet_ntoa(answer[20:24])
            if address == own:
                return name
            if address.startswith("127."):
                loopback = name
    return loopback if own.startswith("127.") else None


def _with_ipv6(own: str) -> str | None:
    if not os.path.exists("/proc/net/if_inet6"):
        return "lo0" if own == "::1" and sys.platform == "darwin" else None
    wanted = socket.inet_pton(socket.AF_INET6, own).hex()
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            parts = line.split()
            if parts[0] == wanted:
                return parts[5]
    return None

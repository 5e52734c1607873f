"""The addresses and interfaces of this machine that reach another node. No name is resolved."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable

# rtnetlink(7)
_NETLINK_ROUTE = 0
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST_DUMP = 0x301
_IFA_LOCAL = 2
_IFF_UP = 1
_ANY_PORT = 9
_NETLINK_SECONDS = 5.0
_SIOCGIFNETMASK = 0xC0206925 if sys.platform == "darwin" else 0x891B
_SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915


def address_towards(address: str) -> str | None:
    """Returns this machine's own address on the route to another one, or None without a route. Sends nothing."""
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address, _ANY_PORT, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
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
    for _, own, length in _ipv4_of_interfaces():
        network = ipaddress.ip_network(f"{own}/{length}", strict=False)
        if wanted and all(each in network for each in wanted):
            return str(network)
    return None


def own_addresses() -> list[str]:
    """Returns the addresses of all interfaces that are up, without zones. On macOS only those of IPv4."""
    found = [(name, address) for name, address, _ in _ipv4_of_interfaces()]
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    found += [(row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))) for row in rows]
    return [address for name, address in found if _is_up(name)]


def _is_up(interface: str) -> bool:
    try:
        with open(f"/sys/class/net/{interface}/flags", encoding="ascii") as file:
            return bool(int(file.read(), 16) & _IFF_UP)
    except (OSError, ValueError):
        # Not Linux.
        return True


def _with_ipv4(own: str) -> str | None:
    found = _ipv4_of_interfaces()
    loopback = next((name for name, address, _ in found if address.startswith("127.")), None)
    if own.startswith("127."):
        return loopback
    # A routed host may have its address on the loopback interface, whose name would stand for 127.0.0.1.
    return next((name for name, address, _ in found if address == own and name != loopback), None)


def _ipv4_of_interfaces() -> list[tuple[str, str, int]]:
    """Returns the name of the interface, the address and the length of its prefix, for each IPv4 address."""
    try:
        return _ipv4_by_netlink()
    except (AttributeError, OSError, struct.error):
        # Not Linux, or a sandbox.
        return _ipv4_by_ioctl()


def _ipv4_by_netlink() -> list[tuple[str, str, int]]:
    """The ioctl knows only the first address of an interface."""
    found: list[tuple[str, str, int]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as kernel:
        kernel.settimeout(_NETLINK_SECONDS)
        request = struct.pack("=IHHII", 24, _RTM_GETADDR, _REQUEST_DUMP, 1, 0)
        kernel.send(request + struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0))
        while True:
            data = kernel.recv(65536)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR or length < 16:
                    raise OSError("the kernel lists no addresses")
                family, prefix, _, _, index = struct.unpack_from("=BBBBI", data, 16)
                own = _attribute(data[24:length], _IFA_LOCAL)
                if kind == _RTM_NEWADDR and family == socket.AF_INET and len(own) == 4:
                    found.append((socket.if_indextoname(index), socket.inet_ntoa(own), prefix))
                data = data[(length + 3) & ~3 :]


def _attribute(data: bytes, wanted: int) -> bytes:
    """Returns an attribute of a netlink message; b"" if it has none of this kind."""
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if kind == wanted:
            return data[4:length]
        data = data[max(4, (length + 3) & ~3) :]
    return b""


def _ipv4_by_ioctl() -> list[tuple[str, str, int]]:
    import fcntl

    found: list[tuple[str, str, int]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                own, mask = (
                    fcntl.ioctl(probe.fileno(), what, request)[20:24]
                    for what in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:
                continue
            length = int.from_bytes(mask, "big").bit_count()
            found.append((name, socket.inet_ntoa(own), length))
    return found


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

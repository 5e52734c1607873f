"""Enforces security groups: packets that no rule admits do not reach an instance's machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowlite.testing.cloud.ec2.life import Lives
    from flowlite.testing.cloud.ec2.life_record import Life
    from flowlite.testing.cloud.ec2.storage.file_systems import FileSystems

# The calls that can change what is admitted.
CHANGING = frozenset(
    {
        "RunInstances",
        "AuthorizeSecurityGroupIngress",
        "RevokeSecurityGroupIngress",
        "ModifySecurityGroupRules",
        "ModifyInstanceAttribute",
        "ModifyNetworkInterfaceAttribute",
        "elasticfilesystem:CreateMountTarget",
        "elasticfilesystem:UpdateMountTarget",
    }
)
_ENDED = ("shutting-down", "terminated")


class Firewall:
    """Keeps the packet filters of machines and file servers in line with their security groups."""

    def __init__(self, lives: Lives, files: FileSystems) -> None:
        self._lives = lives
        self._files = files
        self._applied: dict[str, list[str]] = {}

    def apply(self) -> None:
        """Updates the filters that have changed. Call it with the lock held."""
        living = [life for life in self._lives.all() if life.state not in _ENDED]
        machines = self._lives.machines
        for life in living:
            self._set(life.instance.id, _admitted(_groups(life), living), machines.guard)
        for server, groups in self._files.groups():
            self._set(server, _admitted(groups, living), machines.admit)

    def _set(
        self, name: str, admitted: Iterable[str], guard: Callable[[str, list[str]], None]
    ) -> None:
        wanted = sorted(set(admitted))
        if self._applied.get(name) != wanted:
            guard(name, wanted)
            self._applied[name] = wanted

    def forget(self) -> None:
        """Forgets all filters, when no instance is left."""
        self._applied.clear()


def _admitted(groups: Iterable[Any], living: list[Life]) -> Iterator[str]:
    """The packets that groups admit, in nft's syntax."""
    for group in groups:
        if group.is_default:
            yield from _from(_members(group.id, living), "")
        for rule in group.ingress_rules:
            what = _what(rule)
            if what is None:
                continue
            if rule.cidr_ipv4:
                yield from _from([rule.cidr_ipv4], what)
            elif source := rule.source_group.get("GroupId"):
                yield from _from(_members(source, living), what)


def _groups(life: Life) -> list[Any]:
    found = {group.id: group for nic in life.instance.nics.values() for group in nic.group_set}
    return list(found.values())


def _members(group: str, living: list[Life]) -> list[str]:
    """The private addresses of a group's members. Traffic from a public address does not match a group."""
    return [life.machine.address for life in living if group in {g.id for g in _groups(life)}]


def _from(sources: list[str], what: str) -> Iterator[str]:
    for source in sources:
        yield f"ip saddr {source} {what}".strip()


def _what(rule: Any) -> str | None:
    if rule.ip_protocol == "-1":
        return ""
    if rule.ip_protocol == "icmp":
        return "ip protocol icmp"
    if rule.ip_protocol in ("tcp", "udp"):
        return f"{rule.ip_protocol} dport {rule.from_port}-{rule.to_port}"
    return None

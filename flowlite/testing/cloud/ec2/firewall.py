"""Security groups that hold: what no rule lets in does not reach the instance's machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowlite.testing.cloud.ec2.life import Life, Lives

# Calls after which it may be otherwise than before.
CHANGING = frozenset(
    {
        "RunInstances",
        "AuthorizeSecurityGroupIngress",
        "RevokeSecurityGroupIngress",
        "ModifySecurityGroupRules",
        "ModifyInstanceAttribute",
        "ModifyNetworkInterfaceAttribute",
    }
)
_ENDED = ("shutting-down", "terminated")


class Firewall:
    """Keeps every machine's filter as its instance's groups have it."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._applied: dict[str, list[str]] = {}

    def apply(self) -> None:
        """Changes the filters that are not as they should be. To be called under the lock."""
        living = [life for life in self._lives.all() if life.state not in _ENDED]
        for life in living:
            wanted = sorted(set(_admitted(life, living)))
            if self._applied.get(life.instance.id) != wanted:
                self._lives.machines.guard(life.instance.id, wanted)
                self._applied[life.instance.id] = wanted

    def forget(self) -> None:
        """No instance is left."""
        self._applied.clear()


def _admitted(life: Life, living: list[Life]) -> Iterator[str]:
    """What is let in, in the words of nft."""
    for group in _groups(life):
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
    """Private addresses: who comes by a public one is not known as a member."""
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

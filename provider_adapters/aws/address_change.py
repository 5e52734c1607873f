"""Keeps access to nodes when the address of this machine changes: the security group then allows the new one, too.

A group has room for 60 rules, so that the oldest addresses go.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from flowlite.errors import FlowError
from flowlite.state import clock
from provider_adapters.aws import network
from provider_adapters.aws.context import Context

_EVERY_SECONDS = 20.0
_MOST_ADDRESSES = 20


def let_in_again(context: Context, tasks: Iterable[str]) -> None:
    """Allows SSH from the present address if it differs from that of the launch. Never raises."""
    if context.settings.ssh_from or context.settings.jump or not context.settings.public_ip:
        return
    now = clock.monotonic()
    if now - context.own_address_at < _EVERY_SECONDS:
        return
    context.own_address_at = now
    with suppress(FlowError):
        launches = [each for task in tasks for each in context.ledger.launches(task)]
        for launch in launches:
            groups = {k: dict(v) for k, v in launch.notes.get("groups", {}).items()}
            for region, here in groups.items():
                if launch.ended or not here.get("group"):
                    continue
                endpoint = context.clients.endpoint("ec2", region)
                address = f"{network.own_address(endpoint)}/32"
                if address not in here.get("networks", ()):
                    known = [*here.get("networks", ()), address]
                    network.admit(context.clients, region, here["group"], [address])
                    here["networks"] = known[-_MOST_ADDRESSES:]
                    context.ledger.note(launch.token, groups=groups)
                    if over := known[:-_MOST_ADDRESSES]:
                        network.shut_out(context.clients, region, here["group"], over)

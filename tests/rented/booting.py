"""Test hosts that boot as rented machines do: a fresh disk, then the script of the first boot."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provider_adapters.rented import keys
from provider_adapters.rented.first_contact import MachineAccess
from provider_adapters.rented.keys import KeyPair
from provider_adapters.rented.userdata import Boot, boot_script
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Host


def run_script(host: Host, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script on a host as its init would. Never where it could end the real machine."""
    guard = "! [ -f /proc/sysrq-trigger ] && ! command -v systemctl"
    assert host.exec(["sh", "-c", guard]).returncode == 0, "this host could end the machine"
    return host.exec(["sh", "-c", "cat >/tmp/boot && sh /tmp/boot"], input=script)


def boot(
    hosts: Sequence[Host], home: Path, host_key: KeyPair, **options: object
) -> list[MachineAccess]:
    """Has hosts run the script of one launch."""
    values = {"host_key": host_key, "authorized": (keys.client_public(home),), **options}
    script = boot_script(Boot(**values))  # type: ignore[arg-type]
    for host in hosts:
        done = run_script(host, script)
        assert done.returncode == 0, done.stderr
    user = str(options.get("user", "root"))
    return [
        MachineAccess(f"i-{host.name}", host.address, host_key.public, user=user) for host in hosts
    ]


def ended(host: Host, timeout: float = 90) -> bool:
    """Waits until a host has ended by itself."""
    return eventually(lambda: not host.alive, timeout=timeout, every=0.05, what=f"{host} ends")

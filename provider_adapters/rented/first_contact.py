"""First contact with booting machines: each that answers with the pinned key is asked for its facts, all in parallel.

A machine proves its identity with the throw-away key from its user data. It then creates a key of its own, which never
leaves it. That key is pinned in FLOW_HOME, and the old one is removed from the machine. Pins are stored in
FLOW_HOME/<provider>/known_hosts/<instance id>, with the instance's id as the host name.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import ConfigError, HostKeyError, NodeUnreachable, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.state import clock
from provider_adapters import pythons
from provider_adapters.rented import first_contact_commands, ports
from provider_adapters.rented.keys import client_key
from provider_adapters.rented.pins import Pins
from provider_adapters.rented.preparation import make_ready
from provider_adapters.ssh.hosts import everywhere

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.connect.ssh.targets import SshTarget

log = logging.getLogger("flowlite.rented")

SILENT, BOOTING, WRONG = "silent", "booting", "wrong"
_PORT_SECONDS = 1.5
_SHOWN_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class MachineAccess:
    """How a machine is reached.

    Attributes:
        id: The instance's id.
        address: The address to connect to: public, or private through `jump` or a VPN.
        host_key: The throw-away public key of its launch.
        jump: A jump host, as in OpenSSH's ProxyJump; "" for none.
    """

    id: str
    address: str
    host_key: str
    user: str = "root"
    port: int = 22
    jump: str = ""


@dataclass(frozen=True, slots=True)
class ReadyMachine:
    """A machine that is ready. `data` is JSON for `Instance.data`; `connect` and `node_settings` use it.

    Attributes:
        data: {"place", "home", "root", "python", "pythons", "private_address"}.
    """

    id: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotYet:
    """A machine that is not ready; `why` is a text for the user.

    Attributes:
        stage: "silent" (nothing answers on its port), "booting" (it answers, but not yet with the pinned key, or it
            refuses the login), "wrong" (it is up but unusable, for example without a Python; waiting does not help).
    """

    id: str
    stage: str
    why: str


def holding_up(results: Sequence[ReadyMachine | NotYet]) -> list[NotYet]:
    """The machines that the others wait for: those that do not answer or, if all do, those that are not ready."""
    missing = [each for each in results if isinstance(each, NotYet)]
    return [each for each in missing if each.stage == SILENT] or missing


class Contact:
    """First contact with the machines of one provider, from one FLOW_HOME.

    Args:
        ssh_config: OpenSSH configuration in which jump hosts are looked up; "" for the usual one.
    """

    def __init__(self, home: Path, provider: str, ssh_config: str = "") -> None:
        self._home = home
        self._ssh_config = ssh_config or None
        self._pins = Pins(home / provider / "known_hosts")
        self._met: dict[str, ReadyMachine] = {}
        self._lock = threading.Lock()

    def reach(
        self,
        places: Sequence[MachineAccess],
        *,
        task: str,
        minor: str | None = None,
        agent: Path | None = None,
    ) -> list[ReadyMachine | NotYet]:
        """Tries all machines in parallel; returns the results in order, after about two seconds if nothing answers.

        Nothing else is done before all machines answer on their port. May be called again after a crash at any point.

        Args:
            task: The task's id.
            minor: The required minor version of Python ("3.11"). Python is installed on a machine where none is new
                enough.
            agent: The agent's zipapp, if there is one; it is sent to machines as soon as they are ready.

        Raises:
            ProviderError: FLOW_HOME is not writable, or a jump host is invalid or refuses the connection.
        """
        new = [place for place in places if place.id not in self._met]
        near = [place for place in new if not place.jump]
        found = ports.answering([(p.address, p.port) for p in near], _PORT_SECONDS)
        silent = {place.id for place, answers in zip(near, found, strict=True) if not answers}
        if silent:
            return [self._before(place, silent) for place in places]
        # Created here on first use, rather than in many threads at once.
        client_key(self._home)
        results = everywhere(
            places, lambda place: self._try(place, task, minor, agent), ProviderError
        )
        for result in results:
            if isinstance(result, Exception):
                raise result
            log.debug("%s %s", result.id, result.why if isinstance(result, NotYet) else "is ready")
        return [result for result in results if not isinstance(result, Exception)]

    def check_jump(self, jump: str) -> None:
        """Logs in to the jump hosts on the way to machines, before there are any. Raises NodeUnreachable."""
        from flowlite.connect.ssh.connection import SshConnection

        *before, last = self._way(jump)
        connection = SshConnection(replace(last, jump=tuple(before)))
        with connection:
            connection.open()

    def require_jump(self, jump: str, table: str) -> None:
        """Checks before a launch that its machines can be reached, which would be found out only once they boot.

        Args:
            jump: The setting of that name; "" for no jump host.
            table: The table of the configuration that has it.

        Raises:
            ProviderError: A jump host is invalid, does not answer or refuses the login.
        """
        if not jump:
            return
        try:
            self.check_jump(jump)
        except (NodeUnreachable, ConfigError) as error:
            raise ProviderError(
                f"[{table}] jump: {error}. Machines would be reached through it; nothing was launched"
            ) from error

    def connect(self, data: Mapping[str, Any]) -> Connection:
        """A connection to a machine, from its `Instance.data`. Nothing is sent before the first use."""
        from flowlite.connect.ssh.connection import SshConnection

        return SshConnection(self._target(MachineAccess(**data["place"])))

    def forget(self, instance_id: str) -> None:
        """Removes the pins of a machine that is gone."""
        with self._lock:
            self._met.pop(instance_id, None)
        self._pins.forget(instance_id)

    # Helpers

    def _before(self, place: MachineAccess, silent: set[str]) -> ReadyMachine | NotYet:
        if place.id in self._met:
            return self._met[place.id]
        if place.id in silent:
            return NotYet(place.id, SILENT, f"nothing answers at {place.address}:{place.port}")
        return NotYet(place.id, BOOTING, "it waits for the others")

    def _try(
        self, place: MachineAccess, task: str, minor: str | None, agent: Path | None
    ) -> ReadyMachine | NotYet:
        if place.id in self._met:
            return self._met[place.id]
        if not self._pins.read(place.id):
            self._pins.write(place.id, [place.host_key])
        connection = self.connect({"place": asdict(place)})
        with connection:
            try:
                connection.open()  # type: ignore[attr-defined]
            except NodeUnreachable as error:
                if error.patience is not None and error.host not in ("", place.id):
                    # A jump host refuses the connection; unlike the machine, it is not booting.
                    raise
                if not isinstance(error, HostKeyError):
                    return NotYet(place.id, BOOTING, str(error))
                why = f"it shows another host key than the one it was given ({error.fingerprint})"
                return NotYet(place.id, BOOTING, why)
            try:
                met = self._meet(place, connection, task, minor)
                if isinstance(met, ReadyMachine):
                    make_ready(connection, met.data, agent)
            except NodeUnreachable as error:
                return NotYet(place.id, BOOTING, str(error))
            except ProviderError as error:
                return NotYet(place.id, WRONG, str(error))
        if isinstance(met, ReadyMachine):
            with self._lock:
                self._met[place.id] = met
        return met

    def _meet(
        self, place: MachineAccess, connection: Connection, task: str, minor: str | None
    ) -> ReadyMachine | NotYet:
        told = first_contact_commands.ask(connection, place.id, minor)
        pinned = self._pins.read(place.id)
        if pinned != [told.key]:
            if told.key not in pinned:
                self._pins.write(place.id, [*pinned, told.key])
            first_contact_commands.change_over(connection, place.id)
            if not self._shows(place, told.key):
                return NotYet(place.id, BOOTING, "its sshd does not show its own key yet")
            self._pins.write(place.id, [told.key])
        python = pythons.choose(told.pythons, minor)
        if python is None:
            pythons.bring(connection, told.root, told.machine, minor, self._home)
            told = first_contact_commands.ask(connection, place.id, minor)
            python = pythons.choose(told.pythons, minor)
        if python is None:
            raise ProviderError(
                f"{place.id}: no Python {pythons.OLDEST} or newer, and none can be installed"
            )
        data = {
            "place": asdict(place),
            "home": f"{told.root}/tasks/{task}-{place.id}",
            "root": told.root,
            "python": python[0],
            "pythons": [list(each) for each in told.pythons],
            "private_address": told.address,
        }
        return ReadyMachine(place.id, data)

    def _shows(self, place: MachineAccess, key: str) -> bool:
        """Whether sshd presents this key now; it may take a moment to load it."""
        from flowlite.connect.ssh import host_key_scan

        until = clock.monotonic() + _SHOWN_SECONDS
        while True:
            try:
                if host_key_scan.fetch(self._target(place)).line == key:
                    return True
            except NodeUnreachable:
                pass
            if clock.monotonic() > until:
                return False
            clock.sleep(0.05)

    def _target(self, place: MachineAccess) -> SshTarget:
        from flowlite.connect.ssh.targets import SshTarget

        target = SshTarget(
            name=place.id,
            user=place.user,
            host=place.address,
            port=place.port,
            identities=(str(client_key(self._home)),),
            # Host names are compared in lower case.
            host_key_name=place.id.lower(),
            explicit=True,
            identities_only=True,
            agent="",
            known_hosts=(str(self._pins.file(place.id)),),
        )
        return replace(target, jump=self._way(place.jump)) if place.jump else target

    def _way(self, jump: str) -> tuple[SshTarget, ...]:
        """The jump hosts in order, as they are in OpenSSH's configuration."""
        from flowlite.connect.ssh.targets import resolve_target

        return resolve_target({"host": "machine", "jump": jump}, self._ssh_config).jump

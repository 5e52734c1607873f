"""The commands that run on a rented machine between two tasks: one keeps it for a while, one hands it to the next task.

Kept, the machine has a lease that ends with the time for which it is kept, so that it ends itself if no task takes it
over. Handed over, it has the lease of a machine with an agent, and the longest life that its new task allows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect import programs
from flowlite.connect.bounded import last_line, parse_object
from flowlite.errors import ProviderError
from flowlite.node.host_lease.kept_machine import KEPT
from flowlite.provider import Instance, LaunchIntent, Plan
from provider_adapters import remote_commands
from provider_adapters.rented.preparation import agent_of, make_ready
from provider_adapters.rented.watchdog import DIRECTORY, LEASE_FILE
from provider_adapters.ssh.hosts import everywhere
from provider_adapters.ssh.leases import find_agent

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from provider_adapters.rented.ledger import Launch

_SECONDS = 30.0
# Exit statuses of a shell, and of Python, for a program that does not exist.
_ABSENT = (2, 126, 127)
# The watchdog's figure of the seconds that have run is up to half a minute old, so the machine ends rather too early.
_TAKE = f"""\
lease=$1 longest=$2
read until <{LEASE_FILE} && read u _ </proc/uptime || exit 1
[ $((until - ${{u%.*}})) -gt 3 ] || {{ echo "it ends itself now" >&2; exit 1; }}
s=; [ "$(id -u)" = 0 ] || s='sudo -n'
$s sh -c '
  cd {DIRECTORY} || exit 1
  if [ "$1" = none ]; then rm -f deadline; exit; fi
  used=0; [ ! -s used ] || read used <used
  echo $((used + $1)) >deadline.new && mv -f deadline.new deadline
' sh "$longest" || exit 1
rm -f {Path(LEASE_FILE).with_name(KEPT)}
echo $((${{u%.*}} + lease)) >{LEASE_FILE}.take && mv -f {LEASE_FILE}.take {LEASE_FILE}
"""


class RentedMachines:
    """The machines of a cloud: as `GangMachines`."""

    def __init__(
        self,
        home: Path,
        connect: Callable[[Mapping[str, Any]], Connection],
        machines_of: Callable[[Launch], Iterable[str]],
        bounds: Callable[[Plan], tuple[float, float | None]],
        notice: str = "",
    ) -> None:
        """
        Args:
            connect: A connection to the machine with this `Instance.data`.
            machines_of: The ids of a launch's machines.
            bounds: Seconds without an agent after which a machine of a plan ends itself, and seconds after which it
                ends itself in any case; None for no limit.
            notice: The file on a machine that says that it is taken away, where the cloud replaces what it takes.
        """
        self._home = home
        self._connect = connect
        self._machines_of = machines_of
        self._bounds = bounds
        self._notice = notice

    def token_of(self, instance: Instance) -> str:
        """As `GangMachines.token_of`."""
        return str(instance.data.get("token") or "")

    def names_of(self, launch: Launch) -> set[str]:
        """As `GangMachines.names_of`."""
        return {*self._machines_of(launch)}

    def keep(self, _: Launch, instances: Sequence[Instance], seconds: float) -> None:
        """As `GangMachines.keep`."""
        agent = find_agent(self._home, None).path

        def one(instance: Instance) -> None:
            with self._connect(instance.data) as connection:
                keep(connection, instance.data, agent, instance.task_id, seconds, self._notice)

        everywhere(instances, one)

    def take(self, _: Launch, instances: Sequence[Instance], intent: LaunchIntent) -> None:
        """As `GangMachines.take`."""
        lease, longest = self._bounds(Plan.from_json(intent.plan))
        agent = agent_of(intent)

        def one(instance: Instance) -> None:
            with self._connect(instance.data) as connection:
                take(connection, lease, longest)
                make_ready(connection, instance.data, agent)

        everywhere(instances, one)


def keep(
    connection: Connection,
    data: Mapping[str, Any],
    agent: Path,
    task: str,
    seconds: float,
    notice: str,
) -> None:
    """Ends a task on a machine, which ends itself after this time. The imports of the task stay.

    Args:
        data: `Instance.data`.
        agent: The node's program on this machine, named by its hash.
        notice: A file on the machine. When it is there, the machine ends itself at once; "" for none.

    Raises:
        NodeUnreachable: It does not answer.
        ProviderError: It cannot be kept.
    """
    program = f"{data['root']}/blobs/{agent.stem}"
    argv = programs.started(str(data["python"]), program, "keep-machine")
    request = {
        "task": task,
        "root": data["root"],
        "home": data["home"],
        "lease": LEASE_FILE,
        "seconds": seconds,
        "notice": notice,
    }
    text = json.dumps(request).encode()
    done = remote_commands.run(connection, argv, _SECONDS, input=text)
    if done.code in _ABSENT:
        connection.put_cached(agent, program, agent.stem, mode=0o700)
        done = remote_commands.run(connection, argv, _SECONDS, input=text)
    try:
        answer = parse_object(last_line(done.stdout))
    except ValueError:
        answer = {}
    if answer.get("ok") is not True:
        why = str(answer.get("error") or remote_commands.said(done))
        raise ProviderError(f"it cannot be kept: {why[:300]}")


def take(connection: Connection, lease: float, longest: float | None) -> None:
    """Has a kept machine live on for its next task.

    Args:
        lease: Seconds without an agent after which it ends itself.
        longest: Seconds from now on after which it ends itself in any case; None for no limit.

    Raises:
        NodeUnreachable: It does not answer.
        ProviderError: It cannot be taken over.
    """
    limit = "none" if longest is None else str(math.floor(longest))
    argv = ["sh", "-c", _TAKE, "sh", str(math.ceil(lease)), limit]
    done = remote_commands.run(connection, argv, _SECONDS)
    if done.code != 0:
        raise ProviderError(f"it cannot be taken over: {remote_commands.said(done)}")

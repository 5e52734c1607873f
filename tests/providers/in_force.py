"""What an adapter goes by, here and in the process of a supervisor, which is started in another directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

# Leads tasks as a supervisor does, up to the adapter that it is given.
_LEAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from flowlite.supervise.process import main as process
from tests.providers.in_force import settings_in_force

told = {}

class Told:
    warm_seconds = 0.0

    def __init__(self, store, home, record, lease, provider, *, launches):
        told[record.id] = settings_in_force(provider)

    has_moved = False

    async def run(self):
        pass

process.Supervisor = Told
for task in sys.argv[3:]:
    assert process.lead(task, Path(sys.argv[2]))[0] == 0
print(json.dumps(told))
"""


def settings_in_force(provider: Any) -> str:
    """All that an adapter has read of its settings, as text."""
    if provider.name == "aws":
        return repr(provider._context.settings)
    if provider.name == "mithril":
        return repr(provider._place.account.settings)
    if provider.name == "slurm":
        return repr(provider._place.settings)
    if provider.name == "ssh":
        from provider_adapters.ssh.pools import choose_pool, read_pools

        pools = read_pools(provider.settings)
        return repr([pools, choose_pool(provider.settings) if pools else None])
    return repr(sorted(provider.settings.values.items()))


def in_supervisors(
    home: Path, tasks: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """What the adapters of these tasks go by in a supervisor: started in `/`, from another shell."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _LEAD, str(ROOT), str(home), *tasks],
        cwd="/",
        env={**environment, "FLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told

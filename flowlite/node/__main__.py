"""The node's program: `python agent.pyz SUBCOMMAND`, or `python -m flowlite.node SUBCOMMAND` in a source tree.

Subcommands:

    agent ATTEMPT_DIR        be the agent of an attempt
    agent --detach DIR...    fork one agent for each directory, and return
    warm SPEC.json [FD]      be the warm process (started by agents and by the local provider)
    worker ORDER.json PID    be a worker in a fresh interpreter (started by the keeper)
    exec NODE_HOME -- ARGV   run a command in the node's environment (used by `flow ssh`)
    version                  say which Python this is

What is imported depends on the subcommand: what is not imported takes no time and no memory.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    what, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if what == "agent" and rest:
        # asyncio imports ssl if it can: a third of the agent's memory, for nothing.
        sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
        from . import agent

        return agent.main(rest)
    if what == "warm" and rest:
        from . import template

        template.main(rest)
    if what == "worker" and len(rest) == 2:
        from . import worker

        worker.main_of_spawned(rest)
    if what == "exec" and rest:
        from . import exec as enter

        return enter.main(rest)
    if what == "version":
        sys.stdout.write(f"{sys.version}\n")
        return 0
    sys.stderr.write(f"usage: {(__doc__ or '').strip()}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())

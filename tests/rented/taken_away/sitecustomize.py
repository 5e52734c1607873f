"""Gives nodes of the local provider a machine that can be taken away, for supervisors. Found through PYTHONPATH.

In FLOW_HOME, a file `signal-<instance>.yml` is the signal of that node's cloud, and one `gone-<instance>` makes the
provider say that it has taken it away.
"""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any


def _arm(home: Path) -> None:
    sys.path.insert(0, sys.orig_argv[-1])
    from provider_adapters.local import LocalProvider

    usual = LocalProvider.node_settings

    def settings(self: LocalProvider, plan: Any, instance: Any) -> Any:
        how = {"kind": "mithril", "file": str(home / f"signal-{instance.id}.yml"), "every": 0.05}
        return dataclasses.replace(usual(self, plan, instance), preemption=how)

    usual_listing = LocalProvider.list_instances

    def listing(self: LocalProvider, task_id: str | None = None) -> Any:
        from flowlite.provider import Instance

        gone = [path.name.removeprefix("gone-") for path in home.glob("gone-*")]
        there = [each for each in usual_listing(self, task_id) if each.id not in gone]
        return there + [
            Instance(name, task_id or "", state="ended", preempted=True) for name in gone
        ]

    LocalProvider.list_instances = listing  # type: ignore[method-assign]
    LocalProvider.node_settings = settings  # type: ignore[method-assign]


if "flowlite.supervise.process.main" in " ".join(sys.orig_argv):
    _arm(Path(os.environ["FLOW_HOME"]))

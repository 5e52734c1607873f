"""Which parts of the suite are for `pytest -m hours`: those that prove what another provider's prove.

- Machines of clouds are reached as hosts are: `test_ssh.py`. A supervisor that loses one does what it does where it
  loses a host, but for the launch of another; that is tried with each cloud, with the leader or with another node.
- From a login node a job's nodes are reached as from a laptop, by steps; `tests/connect/step` holds steps of this
  machine to the same contract. What becomes of tasks, of volumes and of a node that dies is the same wherever the
  client is; one task is run from the login node, too.
"""

from __future__ import annotations

import pytest

_REACHING = ("CommandTests", "FileTests", "StreamTests")
_HOURS = {
    "TestAws": (*_REACHING, "FailureTests"),
    "TestMithril": (*_REACHING, "FailureTests"),
    "TestSlurmFromTheLoginNode": (*_REACHING, "FailureTests", "TaskTests", "VolumeTests"),
}
_REPLACED = "test_a_node_that_dies_is_replaced_and_the_others_keep_their_ranks"
_ALWAYS = {
    "TestAws": f"{_REPLACED}[leader]",
    "TestMithril": f"{_REPLACED}[another]",
    "TestSlurmFromTheLoginNode": "test_every_rank_runs_once_and_knows_the_others",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            suite, part = item.cls.__name__, item.function.__qualname__.partition(".")[0]
            if part in _HOURS.get(suite, ()) and item.name != _ALWAYS[suite]:
                item.add_marker(pytest.mark.hours)

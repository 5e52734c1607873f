"""Which parts of the suite are for `pytest -m hours`: those that prove what another provider's prove.

- Machines of clouds are reached as hosts are: `test_ssh.py`.
- From a login node a job's nodes are reached as from a laptop, by steps; `tests/connect/step` holds steps of this
  machine to the same contract. What becomes of a node that dies is seen by Slurm, wherever the client is.
"""

from __future__ import annotations

import pytest

_REACHING = ("CommandTests", "FileTests", "StreamTests")
_HOURS = {
    "TestAws": _REACHING,
    "TestMithril": _REACHING,
    "TestSlurmFromTheLoginNode": (*_REACHING, "FailureTests"),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            part = item.function.__qualname__.partition(".")[0]
            if part in _HOURS.get(item.cls.__name__, ()):
                item.add_marker(pytest.mark.hours)

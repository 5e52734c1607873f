"""The hosts of benchmarks that exist at the wire only do what hosts do; else a figure would be one of an error."""

from __future__ import annotations

import pytest

from benchmarks.fake_pool import fake_pool
from flowlite import Flow, TaskConfig


@pytest.mark.needs("hosts")
def test_a_gang_runs_on_faked_hosts() -> None:
    with fake_pool(20) as unknown:
        # The first task finds hosts that nobody has looked at, and the second one hosts that are known.
        for _ in range(2):
            task = Flow().run(TaskConfig(command=["true"], num_instances=20))
            try:
                assert task.wait(60), task.reason
            finally:
                task.cancel()
            assert task.status == "completed", task.reason
        assert not unknown.exists(), unknown.read_text()

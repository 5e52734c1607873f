"""The records of hosts that tasks of one FLOW_HOME have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provider_adapters.ssh.records import ASKED, LEFT, TAKEN, WARM, Records


def record(directory: Path, task: str, states: dict[str, str]) -> None:
    hosts = {key: {"state": state} for key, state in states.items()}
    (directory / "tasks").mkdir(exist_ok=True)
    (directory / "tasks" / f"{task}.json").write_text(json.dumps({"hosts": hosts}))


def test_hosts_of_others_are_those_that_they_have_or_ask_for(tmp_path: Path) -> None:
    record(tmp_path, "mine", {"a": TAKEN})
    record(tmp_path, "other", {"b": TAKEN, "c": ASKED, "d": LEFT, "e": WARM})
    assert Records(tmp_path).held_beside("mine") == {"b", "c"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"hosts": {"b": {}}}', '{"hosts": {"b": 7}}'])
def test_a_damaged_record_of_another_task_stops_no_launch(tmp_path: Path, content: str) -> None:
    record(tmp_path, "other", {"c": TAKEN})
    (tmp_path / "tasks" / "damaged.json").write_text(content)
    assert Records(tmp_path).held_beside("mine") == {"c"}
